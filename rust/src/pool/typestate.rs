//! What the types of handles rule out, each beside its twin that compiles.
//!
//! Only documentation tests are in here: a sample marked `compile_fail` has to be refused.

/// A mutable handle has one owner.
///
/// ```compile_fail,E0599
/// use dynamo_llm::block_manager::pool::MutableSlots;
/// fn two_owners(slots: &MutableSlots) -> MutableSlots {
///     slots.clone()
/// }
/// ```
///
/// ```
/// use dynamo_llm::block_manager::pool::ImmutableSlots;
/// fn two_readers(slots: &ImmutableSlots) -> ImmutableSlots {
///     slots.clone()
/// }
/// ```
struct CloneMutable;

/// Registering takes the mutable handle away.
///
/// ```compile_fail,E0382
/// use dynamo_llm::block_manager::pool::{MutableSlots, Registration, SlotPool};
/// fn keep_writing(pool: &SlotPool, slots: MutableSlots, names: &[Registration]) {
///     let registered = pool.register(slots, names);
///     slots.ids();
///     drop(registered);
/// }
/// ```
///
/// ```
/// use dynamo_llm::block_manager::pool::{MutableSlots, Registration, SlotPool};
/// fn look_before(pool: &SlotPool, slots: MutableSlots, names: &[Registration]) {
///     slots.ids();
///     drop(pool.register(slots, names));
/// }
/// ```
struct UseAfterRegister;

/// A registered block is not written.
///
/// ```compile_fail,E0599
/// use dynamo_llm::block_manager::ImmutableBlock;
/// fn write(block: &mut ImmutableBlock) {
///     block.block_view_mut().unwrap().fill(0);
/// }
/// ```
///
/// ```
/// use dynamo_llm::block_manager::MutableBlock;
/// fn write(block: &mut MutableBlock) {
///     block.block_view_mut().unwrap().fill(0);
/// }
/// ```
struct WriteImmutable;

/// A weak block shows no bytes.
///
/// ```compile_fail,E0599
/// use dynamo_llm::block_manager::WeakBlock;
/// fn read(block: &WeakBlock) -> usize {
///     block.block_view().unwrap().len()
/// }
/// ```
///
/// ```
/// use dynamo_llm::block_manager::WeakBlock;
/// fn read(block: &WeakBlock) -> Option<usize> {
///     Some(block.upgrade()?.block_view().ok()?.len())
/// }
/// ```
struct ReadWeak;

/// A view ends with its block.
///
/// ```compile_fail,E0515
/// use dynamo_llm::block_manager::ImmutableBlock;
/// fn keep(block: ImmutableBlock) -> &'static [u8] {
///     block.block_view().unwrap()
/// }
/// ```
///
/// ```
/// use dynamo_llm::block_manager::ImmutableBlock;
/// fn look(block: &ImmutableBlock) -> &[u8] {
///     block.block_view().unwrap()
/// }
/// ```
struct ViewOutlivesBlock;

/// A block is not freed while a view of it is in use.
///
/// ```compile_fail,E0505
/// use dynamo_llm::block_manager::MutableBlock;
/// fn free_while_written(mut block: MutableBlock) {
///     let bytes = block.block_view_mut().unwrap();
///     drop(block);
///     bytes.fill(0);
/// }
/// ```
///
/// ```
/// use dynamo_llm::block_manager::MutableBlock;
/// fn free_once_written(mut block: MutableBlock) {
///     let bytes = block.block_view_mut().unwrap();
///     bytes.fill(0);
///     drop(block);
/// }
/// ```
struct ReleaseInUse;
