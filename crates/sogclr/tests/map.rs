//! ARCHITECTURE.md cannot lie: its table names exactly the edges that the code has, they form no cycle, and the library
//! compiles no crate of the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Edges = BTreeMap<String, BTreeSet<String>>;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The modules that a piece of code names, tests and comments aside.
fn named(code: &str) -> BTreeSet<String> {
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut found = BTreeSet::new();
    for line in lines {
        for rest in line.split("crate::").skip(1) {
            found.insert(rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect());
        }
        if line.contains("sogclr_kernels") {
            found.insert("kernels".into());
        }
    }
    found
}

/// What each module of the library uses.
fn real() -> Edges {
    let folders: Vec<PathBuf> = std::fs::read_dir(source()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let modules: BTreeSet<String> = folders.iter().filter(|path| path.is_dir()).map(|path| name(path)).collect();
    let mut edges = Edges::new();
    for folder in folders.iter().filter(|path| path.is_dir()) {
        let code = rust_files(folder).into_iter().map(|file| std::fs::read_to_string(file).unwrap());
        let used = code.flat_map(|code| named(&code));
        let own = name(folder);
        let used = used.filter(|module| *module != own && (modules.contains(module) || module == "kernels"));
        edges.insert(own.clone(), used.collect());
    }
    edges
}

/// What the table says: rows of | `module` | text | modules |.
fn promised() -> Edges {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md")).unwrap();
    let table = page.split("| folder |").nth(1).expect("the table of folders").split("\n\n").next().unwrap();
    let mut edges = Edges::new();
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let used = cells[3].split(',').map(str::trim).filter(|cell| !cell.is_empty() && *cell != "–");
        edges.insert(cells[1].trim_matches('`').to_owned(), used.map(str::to_owned).collect());
    }
    edges
}

#[test]
fn the_map_names_the_edges_that_there_are() {
    let (real, promised) = (real(), promised());
    assert_eq!(real.keys().collect::<Vec<_>>(), promised.keys().collect::<Vec<_>>(), "folders of src and of the table");
    for (module, used) in &real {
        let unlisted: Vec<_> = used.difference(&promised[module]).collect();
        assert!(unlisted.is_empty(), "{module} uses {unlisted:?}, which ARCHITECTURE.md does not list");
        let unused: Vec<_> = promised[module].difference(used).collect();
        assert!(unused.is_empty(), "ARCHITECTURE.md lists {unused:?}, which {module} does not use");
    }
}

#[test]
fn no_module_uses_itself_by_a_detour() {
    let mut left = real();
    for used in left.values_mut() {
        used.remove("kernels");
    }
    while !left.is_empty() {
        let free: Vec<String> = left.iter().filter(|(_, used)| used.is_empty()).map(|(name, _)| name.clone()).collect();
        assert!(!free.is_empty(), "there is a cycle among {:?}", left.keys().collect::<Vec<_>>());
        for name in free {
            left.remove(&name);
            for used in left.values_mut() {
                used.remove(&name);
            }
        }
    }
}

#[test]
fn the_library_needs_no_crate_of_the_command_line() {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--package", "sogclr", "--edges", "normal", "--prefix", "none", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let tree = String::from_utf8_lossy(&tree.stdout).into_owned();
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains("burn") && crates.contains("sogclr-kernels"), "{tree}");
    for glue in ["clap", "indicatif", "plotters", "signal-hook", "ctrlc", "nix"] {
        assert!(!crates.contains(glue), "the library compiles {glue}");
    }
}

/// Long files and functions have a reason beside them.
#[test]
fn what_is_long_says_why() {
    let mut long = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let more = ["../../src", "../kernels/src", "tests", "../../tests"].map(|folder| root.join(folder));
    let folders: Vec<PathBuf> = std::iter::once(source()).chain(more).collect();
    for file in folders.iter().flat_map(|folder| rust_files(folder)) {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines: Vec<&str> = code.lines().collect();
        if lines.len() > 500 && !code.contains("// Long: ") {
            long.push(format!("{} has {} lines", file.display(), lines.len()));
        }
        let mut began: Option<(usize, usize)> = None;
        for (at, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let words = line.trim_start();
            if ["fn ", "pub fn ", "pub(super) fn ", "pub(crate) fn "].iter().any(|start| words.starts_with(start)) {
                began = Some((at, indent));
            } else if let Some((first, depth)) = began
                && *line == format!("{}}}", " ".repeat(depth))
            {
                began = None;
                let has_reason =
                    first > 0 && lines[..first].iter().rev().take(8).any(|line| line.contains("// Long: "));
                if at - first > 80 && !has_reason {
                    long.push(format!("{}:{} is {} lines long", file.display(), first + 1, at - first));
                }
            }
        }
    }
    assert!(long.is_empty(), "without a reason (`// Long: …`): {long:#?}");
}
