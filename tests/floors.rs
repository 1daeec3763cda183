//! The house has floors, and no arrow leads upwards or to the right.
//!
//! Reads the sources, leaves out comments and strings, follows `crate::` and `super::` paths to
//! the module they name, and compares floors. Also: foreign interfaces stay in their one module,
//! and `unsafe` in the few that own raw memory.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Modules of each floor, left to right, lowest floor first.
const FLOORS: &[&[&str]] = &[
    &["dtype", "sync", "tokens"],
    &["index", "layout", "config", "metrics"],
    &["cuda", "io", "storage", "seal"],
    &["eviction", "events", "remote"],
    &["pool"],
    &["transfer"],
    &["offload"],
    &["manager"],
    &["distributed", "slots", "replay"],
];
/// The map and the public face: they name every module.
const FACE: &[&str] = &["lib", "block_manager"];
/// Crates that one module alone may name, if any.
const CONFINED: &[(&str, Option<&str>)] = &[("pyo3", None), ("cudarc", Some("cuda"))];
/// Where `unsafe` may stand: folders and single files that handle raw memory.
const UNSAFE: &[&str] = &[
    // Owned memory, and the loops that copy it.
    "storage/",
    "transfer/",
    // A prefetch instruction.
    "index/cpu.rs",
    // Slices over slots that a handle owns, and copies between them.
    "offload/tier.rs",
    "offload/lane.rs",
    "manager/blocks.rs",
];

/// Sources by path below `rust/src`.
type Tree = BTreeMap<String, String>;

fn place(module: &str) -> Option<(usize, usize)> {
    FLOORS.iter().enumerate().find_map(|(floor, modules)| {
        modules.iter().position(|&m| m == module).map(|column| (floor, column))
    })
}

/// Everything that is wrong with the tree.
fn violations(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let declared = tree.get("lib.rs").map(|text| declared_modules(text)).unwrap_or_default();
    for module in &declared {
        if place(module).is_none() && !FACE.contains(&module.as_str()) {
            found.push(format!("lib.rs: module {module} stands on no floor"));
        }
    }
    for (path, text) in tree {
        let module = path.split(['/', '.']).next().unwrap_or_default();
        let tokens = tokenize(text);
        if FACE.contains(&module) {
            continue;
        }
        if !declared.iter().any(|name| name == module) {
            found.push(format!("{path}: lib.rs does not declare {module}"));
        }
        for (name, home) in CONFINED {
            if *home != Some(module) && tokens.iter().any(|token| token == name) {
                found.push(format!("{path}: names {name}"));
            }
        }
        let raw = UNSAFE.iter().any(|place| path.starts_with(place));
        if !raw && tokens.iter().any(|token| token == "unsafe") {
            found.push(format!("{path}: unsafe code"));
        }
        for target in arrows(&tokens, depth(path)) {
            let wrong = match (place(module), place(&target)) {
                (Some((floor, _)), Some((above, _))) if floor != above => above > floor,
                (Some((_, column)), Some((_, right))) => right > column,
                _ => true,
            };
            if wrong {
                found.push(format!("{path}: {module} reaches for {target}"));
            }
        }
    }
    found
}

/// Names after `mod` at the top level of `lib.rs`, inline modules left out.
fn declared_modules(text: &str) -> Vec<String> {
    let tokens = tokenize(text);
    let declared =
        |window: &[String]| (window[0] == "mod" && window[2] == ";").then(|| window[1].clone());
    tokens.windows(3).filter_map(declared).collect()
}

/// How many `super` lead from the file's module to the crate root.
fn depth(path: &str) -> usize {
    let parts = path.split('/').count();
    if path.ends_with("/mod.rs") { parts - 1 } else { parts }
}

/// The modules of the crate root that paths in these tokens name.
fn arrows(tokens: &[String], file_depth: usize) -> Vec<String> {
    let mut targets = Vec::new();
    // One entry per open brace: whether it opened an inline module.
    let mut braces = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let inline = i >= 2 && tokens[i - 2] == "mod";
        match tokens[i].as_str() {
            "{" => braces.push(inline),
            "}" => drop(braces.pop()),
            "crate" if tokens.get(i + 1).is_some_and(|next| next == "::") => {
                targets.extend(heads(&tokens[i + 2..]));
            }
            "super" => {
                let root = file_depth + braces.iter().filter(|&&module| module).count();
                let mut supers = 1;
                while tokens.get(i + 1).is_some_and(|t| t == "::")
                    && tokens.get(i + 2).is_some_and(|t| t == "super")
                {
                    supers += 1;
                    i += 2;
                }
                if supers >= root && tokens.get(i + 1).is_some_and(|next| next == "::") {
                    targets.extend(heads(&tokens[i + 2..]));
                }
            }
            _ => {}
        }
        i += 1;
    }
    targets
}

/// The first names of a path or of a group of paths; macros of the crate root are no modules.
fn heads(tokens: &[String]) -> Vec<String> {
    if tokens.first().is_none_or(|token| token != "{") {
        let is_macro = tokens.get(1).is_some_and(|next| next == "!");
        return tokens.first().filter(|_| !is_macro).cloned().into_iter().collect();
    }
    let (mut open, mut names) = (0_usize, Vec::new());
    for pair in tokens.windows(2) {
        match pair[0].as_str() {
            "{" => open += 1,
            "}" => open -= 1,
            _ => {}
        }
        if open == 0 {
            break;
        }
        if open == 1 && matches!(pair[0].as_str(), "{" | ",") && pair[1] != "}" {
            names.push(pair[1].clone());
        }
    }
    names
}

/// Names, `::` and single other characters; no comments, strings or character literals.
fn tokenize(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        let start = i;
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut nested = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (nested, i) = (nested + 1, i + 2),
                        ('*', '/') => (nested, i) = (nested - 1, i + 2),
                        _ => i += 1,
                    }
                    if nested == 0 || i >= chars.len() {
                        break;
                    }
                }
            }
            '"' => {
                i += 1;
                while i < chars.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
            }
            // A lifetime has no second quote, a character literal one or an escape.
            '\'' if at(i + 1) == '\\' => {
                i += 3;
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            '\'' if at(i + 2) == '\'' => i += 3,
            ':' if at(i + 1) == ':' => {
                tokens.push("::".to_owned());
                i += 2;
            }
            c if c == '_' || c.is_alphanumeric() => {
                while at(i) == '_' || at(i).is_alphanumeric() {
                    i += 1;
                }
                let word: String = chars[start..i].iter().collect();
                let hashes = chars[i..].iter().take_while(|&&c| c == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"' {
                    let end = format!("\"{}", "#".repeat(hashes));
                    let body: String = chars[i + hashes + 1..].iter().collect();
                    let length = body.find(&end).map_or(body.chars().count(), |byte| {
                        body[..byte].chars().count() + end.chars().count()
                    });
                    i += hashes + 1 + length;
                } else if word == "r" && hashes == 1 {
                    // A raw name: the name follows.
                    i += 1;
                } else {
                    tokens.push(word);
                }
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                i += 1;
            }
        }
    }
    tokens
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read_tree(folder: &Path, below: &Path, tree: &mut Tree) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_tree(&path, below, tree);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(below).unwrap().to_str().unwrap().to_owned();
            tree.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn no_arrow_leads_upwards_or_to_the_right() {
    let source = root().join("rust/src");
    let mut tree = Tree::new();
    read_tree(&source, &source, &mut tree);
    assert!(tree.len() > 10, "the sources are not at {}", source.display());
    let found = violations(&tree);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_core_does_not_depend_on_python() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    assert_eq!(dependents_on("pyo3", &toml::Value::Table(manifest), "workspace"), 0);
}

/// Tables named `...dependencies` with that key, outside of `except`.
fn dependents_on(name: &str, value: &toml::Value, except: &str) -> usize {
    let Some(table) = value.as_table() else { return 0 };
    let count = |(key, value): (&String, &toml::Value)| {
        let here = key.ends_with("dependencies") && value.get(name).is_some();
        usize::from(here) + dependents_on(name, value, except)
    };
    table.iter().filter(|(key, _)| *key != except).map(count).sum()
}

/// A sound tree with `text` as an extra file of `module`.
fn tree_with(module: &str, text: &str) -> Tree {
    let declared: Vec<String> =
        FLOORS.iter().flat_map(|floor| *floor).map(|name| format!("mod {name};")).collect();
    Tree::from([
        ("lib.rs".to_owned(), format!("{}pub mod block_manager;", declared.concat())),
        ("block_manager.rs".to_owned(), "pub use crate::manager::X;".to_owned()),
        (format!("{module}/file.rs"), text.to_owned()),
    ])
}

#[test]
fn the_checker_sees_what_is_wrong() {
    for (module, text) in [
        ("pool", "use crate::transfer::Plan;"),
        ("pool", "fn f() { let x = crate :: manager :: x(); }"),
        ("pool", "use crate::{config::Tier, sync::{Arc, Mutex}, offload as o};"),
        ("pool", "use super::super::manager::X;"),
        ("pool", "mod tests { use super::super::super::manager::X; }"),
        ("pool", "pub(in crate::manager) fn f() {}"),
        ("pool", "macro_rules! m { () => { $crate::replay::x() } }"),
        ("pool", "/* /* nested */ */ use crate::replay::X; // \" '"),
        ("pool", "const A: &str = r#\"\"//\"#; use crate::replay::X;"),
        ("pool", "const A: [char; 3] = ['\"', '\\'', '/']; use crate::replay::X;"),
        ("pool", "use crate::r#replay::X;"),
        ("pool", "use crate::*;"),
        ("pool", "use crate::{self as root};"),
        ("pool", "use crate::block_manager::Pool;"),
        ("config", "use crate::metrics::PoolMetrics;"),
        ("events", "fn f<'a>(x: &'a u8) { crate::remote::x() }"),
        ("pool", "use pyo3::prelude::*;"),
        ("storage", "use cudarc::driver;"),
        ("pool", "fn f() { unsafe { g() } }"),
        ("attic", "fn f() {}"),
    ] {
        let found = violations(&tree_with(module, text));
        assert_eq!(found.len(), 1, "{module}: {text}\n{found:?}");
    }
    let mut tree = tree_with("pool", "");
    tree.get_mut("lib.rs").unwrap().push_str("mod attic;");
    assert_eq!(violations(&tree), ["lib.rs: module attic stands on no floor"]);
}

#[test]
fn the_checker_lets_pass_what_is_right() {
    for (module, text) in [
        ("pool", "use crate::{config::Tier, events::{EventStream, EventKind}, pool::x, sync::*};"),
        ("pool", "//! Above: [`crate::manager`].\n/* crate::manager */ fn f() {}"),
        ("pool", "const A: &str = \"crate::manager \\\" crate::manager\";"),
        ("pool", "const A: &[u8] = br##\"crate::manager\"#\"##;"),
        ("pool", "pub(crate) fn f<'a>(c: char) -> bool { c == '\"' || c == '\\u{41}' }"),
        ("pool", "use super::manager::X; mod tests { use super::super::transfer; }"),
        ("pool", "fn f() { crate::my_macro!(1) }"),
        ("metrics", "use crate::config::Tier;"),
        ("storage", "fn f() { unsafe { g() } }"),
        ("cuda", "use cudarc::driver;"),
    ] {
        assert_eq!(violations(&tree_with(module, text)), [""; 0], "{module}: {text}");
    }
}
