//! The pool beside a model of it, under every policy, through random calls.
//!
//! After each call: the books add up, every slot is in one place, the events were those of the
//! model, in order, and every handle shows the bytes that were written for it and no others.

#![allow(clippy::unwrap_used, missing_docs)]

mod evictions;
mod model;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use dynamo_llm::block_manager::{config::EvictionKind, pool::EvictionMode};
use proptest::{
    prelude::*,
    test_runner::{Config, FileFailurePersistence, TestRunner},
};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use world::World;

/// Steps that a run with the usual settings must come to.
const STEPS: usize = 300_000;
const CASES: u32 = 500;
const LONGEST: usize = 400;

static STEPS_DONE: AtomicUsize = AtomicUsize::new(0);

/// Sequence, first position, number of blocks.
pub(crate) type Run = (u8, u8, u8);

/// One call. Handles are named by numbers that are taken modulo how many there are.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Allocate(usize),
    AllocateUpTo(usize),
    /// Numbers of sections, some of which the pool does not have.
    AllocateIn(Vec<usize>),
    FreeMutable(usize),
    SplitMutable(usize, usize),
    JoinMutable(usize, usize),
    MutableSingles(usize, usize),
    /// The handle, what its blocks are, which engine keys they get.
    Register(usize, Run, u8),
    RegisterAllAlike(usize, Run),
    RegisterTooFew(usize),
    Match(Run, Option<u8>),
    Clone(usize),
    Slice(usize, usize, usize),
    Split(usize, usize),
    Join(usize, usize),
    Singles(usize, usize),
    Release(usize),
    Downgrade(usize),
    Upgrade(usize, usize),
    DropWeak(usize),
    Touch(Run),
    Trigger(EvictionMode),
    Quarantine(usize),
    QuarantineMutable(usize),
    TakeQuarantined,
    Reset,
}

fn run() -> impl Strategy<Value = Run> {
    (0u8..4, 0u8..6, 0u8..7)
}

fn call() -> impl Strategy<Value = Call> {
    let n = || 0usize..12;
    let engine = || prop_oneof![4 => Just(0u8), 2 => Just(1), 1 => Just(2)];
    let mode = prop_oneof![Just(EvictionMode::Normal), Just(EvictionMode::Aggressive)];
    prop_oneof![
        8 => n().prop_map(Call::Allocate),
        4 => n().prop_map(Call::AllocateUpTo),
        8 => prop::collection::vec(0usize..4, 0..8).prop_map(Call::AllocateIn),
        3 => n().prop_map(Call::FreeMutable),
        2 => (n(), n()).prop_map(|(a, b)| Call::SplitMutable(a, b)),
        1 => (n(), n()).prop_map(|(a, b)| Call::JoinMutable(a, b)),
        1 => (n(), n()).prop_map(|(a, b)| Call::MutableSingles(a, b)),
        24 => (n(), run(), engine()).prop_map(|(a, b, c)| Call::Register(a, b, c)),
        2 => (n(), run()).prop_map(|(a, b)| Call::RegisterAllAlike(a, b)),
        1 => n().prop_map(Call::RegisterTooFew),
        16 => (run(), prop::option::of(engine())).prop_map(|(a, b)| Call::Match(a, b)),
        3 => n().prop_map(Call::Clone),
        3 => (n(), n(), n()).prop_map(|(a, b, c)| Call::Slice(a, b, c)),
        2 => (n(), n()).prop_map(|(a, b)| Call::Split(a, b)),
        2 => (n(), n()).prop_map(|(a, b)| Call::Join(a, b)),
        2 => (n(), n()).prop_map(|(a, b)| Call::Singles(a, b)),
        20 => n().prop_map(Call::Release),
        4 => n().prop_map(Call::Downgrade),
        6 => (n(), n()).prop_map(|(a, b)| Call::Upgrade(a, b)),
        2 => n().prop_map(Call::DropWeak),
        3 => run().prop_map(Call::Touch),
        2 => mode.prop_map(Call::Trigger),
        2 => n().prop_map(Call::Quarantine),
        1 => n().prop_map(Call::QuarantineMutable),
        3 => Just(Call::TakeQuarantined),
        1 => Just(Call::Reset),
    ]
}

struct Machine;

impl ReferenceStateMachine for Machine {
    /// Policy and capacity of each section; the rest of the model stands beside the pool, because
    /// only the pool knows whom its policies gave up.
    type State = Vec<(EvictionKind, usize)>;
    type Transition = Call;

    fn init_state() -> BoxedStrategy<Self::State> {
        let policy = || prop::sample::select(EvictionKind::ALL);
        let one = (policy(), 1usize..14).prop_map(|section| vec![section]);
        prop_oneof![one, prop::collection::vec((policy(), 1usize..7), 2..=3)].boxed()
    }

    fn transitions(_: &Self::State) -> BoxedStrategy<Self::Transition> {
        call().boxed()
    }

    fn apply(state: Self::State, _: &Self::Transition) -> Self::State {
        state
    }
}

impl StateMachineTest for Machine {
    type SystemUnderTest = World;
    type Reference = Self;

    fn init_test(sections: &Vec<(EvictionKind, usize)>) -> World {
        World::new(sections)
    }

    fn apply(mut world: World, _: &Vec<(EvictionKind, usize)>, call: Call) -> World {
        world.apply(&call);
        STEPS_DONE.fetch_add(1, Relaxed);
        world
    }

    fn check_invariants(world: &World, _: &Vec<(EvictionKind, usize)>) {
        world.check();
    }

    fn teardown(world: World, _: Vec<(EvictionKind, usize)>) {
        world.close();
    }
}

#[test]
fn does_what_its_model_does() {
    let config = Config {
        cases: CASES * EvictionKind::ALL.len() as u32,
        // Failing seeds are kept beside this file and tried first from then on.
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/pool_model/failures.txt",
        ))),
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let usual = Config::default().cases == 256;
    let config = if usual { config } else { Config { cases: Config::default().cases, ..config } };
    let mut runner = TestRunner::new(config.clone());
    let outcome = runner.run(&Machine::sequential_strategy(1..=LONGEST), |(state, calls, seen)| {
        Machine::test_sequential(config.clone(), state, calls, seen);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    assert!(!usual || STEPS_DONE.load(Relaxed) >= STEPS, "{} steps", STEPS_DONE.load(Relaxed));
}
