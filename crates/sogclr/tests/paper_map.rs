//! docs/paper-map.md cannot lie: everything of the paper that has a number or a name has a row, and every function, test,
//! key and file that a row names is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What the paper has: eqs. (1)–(14) in the text and (15)–(26) in the proofs, counted in its LaTeX source.
const NUMBERED: [(&str, usize); 8] = [
    ("(", 26),
    ("Algorithm 1, line", 11),
    ("Theorem", 3),
    ("Corollary", 1),
    ("Assumption", 2),
    ("Lemma", 3),
    ("Table", 9),
    ("Figure", 4),
];
/// Names of the pseudo-code, then the keys of Table 7.
const NAMED: &str = "model aug tau N ind u g img dataloader x1 x2 h1 h2 norm loss1 loss2 u1 u2 dcl u[ind] loss backward \
    update B labels logits neg_logits p sum_neg_logits normalized_logits embed_dim image_resolution vision_layers \
    vision_width vision_patch_size context_length vocab_size transformer_width transformer_heads transformer_layers";

/// A place in the repository.
fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All code below a folder, or of a file, unit tests aside.
fn code_below(path: &Path) -> String {
    match path.read_dir() {
        Ok(entries) => entries.map(|entry| code_below(&entry.unwrap().path())).collect(),
        Err(_) => read(path).split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned(),
    }
}

/// The table rows of a text, cell by cell; headings and rules are left out.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let is_rule = |line: Option<&&str>| line.is_some_and(|line| line.starts_with("|---"));
    let is_row = |at: &usize| lines[*at].starts_with('|') && !is_rule(lines.get(*at)) && !is_rule(lines.get(at + 1));
    let cells = |at: usize| lines[at].trim_matches('|').split(" | ").map(str::trim).collect();
    (0..lines.len()).filter(is_row).map(cells).collect()
}

/// What stands in backticks, `a::{b, c}` as `a::b` and `a::c`.
fn names(cell: &str) -> Vec<String> {
    let expand = |name: &str| match name.split_once('{').and_then(|(a, rest)| Some((a, rest.split_once('}')?))) {
        Some((start, (list, end))) => list.split(',').map(|part| format!("{start}{}{end}", part.trim())).collect(),
        None => vec![name.to_owned()],
    };
    cell.split('`').skip(1).step_by(2).flat_map(expand).collect()
}

/// The numbers after `kind` in a cell: "Table 3", "Assumptions 1, 2", "(16)–(21)".
fn numbers(cell: &str, kind: &str) -> Vec<usize> {
    let rest = cell.split_once(kind).map_or("", |(_, rest)| rest).trim_start_matches('s').replace(['(', ')'], "");
    let range = |part: &str| {
        let ends: Vec<usize> = part.split('–').filter_map(|number| number.trim().parse().ok()).collect();
        Some(*ends.first()?..=*ends.last()?)
    };
    rest.split(", ").filter_map(range).flatten().collect()
}

/// Whether a line declares `name` at this depth.
fn declares(line: &str, depth: usize, name: &str) -> bool {
    let Some(line) = line.strip_prefix(&" ".repeat(depth)).filter(|line| !line.starts_with(' ')) else { return false };
    let line = ["pub ", "pub(super) ", "pub(crate) "].iter().find_map(|word| line.strip_prefix(word)).unwrap_or(line);
    let kinds = ["fn ", "const fn ", "const ", "struct ", "enum ", "trait ", "type "];
    let Some(line) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else { return false };
    line.strip_prefix(name).is_some_and(|rest| !rest.starts_with(is_word))
}

/// Whether a type has a method, field or variant of that name.
fn has_member(code: &str, owner: &str, member: &str) -> bool {
    let mut inside = ' ';
    code.lines().any(|line| {
        let of_owner = || line.split(|c| !is_word(c)).skip(1).any(|word| word == owner);
        match line {
            "}" => inside = ' ',
            _ if line.starts_with("impl") => inside = if of_owner() { 'i' } else { ' ' },
            _ if declares(line, 0, owner) => inside = if line.contains("trait ") { 'i' } else { 't' },
            _ => {}
        }
        let field = line.strip_prefix("    ").map(|line| line.strip_prefix("pub ").unwrap_or(line));
        let is_field =
            field.and_then(|field| field.strip_prefix(member)).is_some_and(|rest| !rest.starts_with(is_word));
        (inside == 'i' && declares(line, 4, member)) || (inside == 't' && is_field)
    })
}

/// A function, type, member or module below `src`.
fn is_code(name: &str) -> bool {
    let mut parts: Vec<&str> = name.split("::").collect();
    let mut place = at("crates/sogclr/src");
    while let Some(part) = parts.first() {
        let inner = [place.join(part), place.join(format!("{part}.rs"))].into_iter().find(|inner| inner.exists());
        let Some(inner) = inner else { break };
        place = inner;
        parts.remove(0);
    }
    let code = code_below(&place);
    match parts[..] {
        _ if place.ends_with("src") => false,
        [] => true,
        [item] => code.lines().any(|line| declares(line, 0, item)),
        [owner, member] => has_member(&code, owner, member),
        _ => false,
    }
}

/// A test: `cli: file::test`, `module::tests::test` beside its code, or `file::test`; `*` is any of them.
fn is_test(name: &str) -> bool {
    let (path, test) = name.rsplit_once("::").unwrap_or((name, ""));
    let places = match (path.strip_prefix("cli: "), path.strip_suffix("::tests")) {
        (Some(file), _) => vec![format!("tests/cli/{file}.rs")],
        (_, Some(module)) => ["", "/mod"].map(|end| format!("src/{}{end}.rs", module.replace("::", "/"))).into(),
        _ => ["", "reference/"].map(|folder| format!("tests/{folder}{path}.rs")).into(),
    };
    let below = if path.starts_with("cli: ") { "" } else { "crates/sogclr/" };
    let code: String = places.iter().map(|place| read(&at(&format!("{below}{place}")))).collect();
    let of_line = |line: &str| line.trim().strip_prefix("fn ")?.split(|c| !is_word(c)).next().map(str::to_owned);
    let mut found = code.split("#[test]").skip(1).filter_map(|rest| rest.lines().find_map(of_line));
    found.any(|found| found == test || test == "*")
}

/// A file of the repository or below `src`, a verb or flag of the program, or a key or value of a recipe.
fn is_other(name: &str) -> bool {
    if name.contains('/') {
        return ["", "crates/sogclr/src/"].iter().any(|folder| at(&format!("{folder}{name}")).is_file());
    }
    if let Some(verb) = name.strip_prefix("sogclr ") {
        return ["", ".rs"].iter().any(|end| at(&format!("src/verbs/{}{end}", verb.replace(' ', "/"))).exists());
    }
    if let Some(flag) = name.strip_prefix("--") {
        let field = format!(" {}: ", flag.replace('-', "_"));
        return code_below(&at("src/verbs")).contains(&field);
    }
    if name.is_empty() {
        return false;
    }
    let (key, value) = name.split_once(" = ").unwrap_or(if name.contains('.') { (name, "") } else { ("", name) });
    read(&at("docs/config.md")).lines().filter(|line| line.starts_with("| `")).any(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        let entry = cells[0].trim_matches(['|', ' ', '`']);
        let (known, kind) = entry.split_once(" = ").unwrap_or((entry, ""));
        let mut values = cells[1].split(", ").chain([kind.trim_matches('"')]);
        let value = value.trim_matches('"');
        (key.is_empty() || key == known) && (value.is_empty() || values.any(|known| known == value))
    })
}

/// Everything that is wrong with the map.
fn problems(page: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let (map, departures) = page.split_once("## Departures").unwrap_or((page, ""));
    let rows_of_map = rows(map);
    for row in &rows_of_map {
        let [paper, meaning, function, test] = row[..] else {
            wrong.push(format!("{row:?} has not four cells"));
            continue;
        };
        let says_why = meaning.contains("proof only") || meaning.contains("not done");
        let is_open = (function, test) == ("–", "–") && says_why;
        if !is_open && [function, test].iter().any(|cell| names(cell).is_empty()) {
            wrong.push(format!("{paper}: names no function or no test, and does not say why"));
        }
        let lost = |name: &String| format!("{paper}: there is no {name}");
        wrong.extend(names(function).iter().filter(|name| !is_code(name) && !is_other(name)).map(lost));
        wrong.extend(names(test).iter().filter(|name| !is_test(name)).map(lost));
    }
    let of_departures = rows(departures).into_iter().flatten().flat_map(names);
    let unknown = of_departures.filter(|name| !is_code(name) && !is_test(name) && !is_other(name));
    wrong.extend(unknown.map(|name| format!("departures: there is no {name}")));
    let first: Vec<&str> = rows_of_map.iter().map(|row| row[0]).collect();
    for (kind, count) in NUMBERED {
        // Eq. (15) and eq. (22) stand in a row with their lemmas.
        let is_kind = |cell: &&&str| cell.starts_with(kind) || (kind == "(" && cell.starts_with("Lemma"));
        let found: Vec<usize> = first.iter().filter(is_kind).flat_map(|cell| numbers(cell, kind)).collect();
        let missing = (1..=count).filter(|number| !found.contains(number));
        wrong.extend(missing.map(|number| format!("{kind} {number} has no row")));
    }
    let named: BTreeSet<String> = first.iter().flat_map(|cell| names(cell)).collect();
    let missing = NAMED.split_whitespace().filter(|name| !named.contains(*name));
    wrong.extend(missing.map(|name| format!("{name} has no row")));
    wrong
}

#[test]
fn the_map_names_what_there_is() {
    let wrong = problems(&read(&at("docs/paper-map.md")));
    assert!(wrong.is_empty(), "docs/paper-map.md: {wrong:#?}");
}

/// Names that are one letter off, forms that nothing knows, open rows without a word and missing rows are found.
#[test]
fn what_is_not_there_is_found() {
    let page = read(&at("docs/paper-map.md"));
    for name in page.lines().filter(|line| line.starts_with('|')).flat_map(names) {
        let off = if name.ends_with('"') { name.replace('"', "\"x") } else { format!("{name}x") };
        assert!(!is_code(&off) && !is_test(&off) && !is_other(&off), "{off} is found");
    }
    for name in ["SogClr", "loss::SogClr::pushed", "loss::anchors", "losses::evaluate", "method.gamm", "what is this?"]
    {
        assert!(!is_code(name) && !is_test(name) && !is_other(name), "{name} is found");
    }
    let found = |old: &str, new: &str| {
        assert!(page.contains(old), "{old}");
        problems(&page.replace(old, new)).join("; ")
    };
    assert!(found("| (14) |", "| (15) |").contains("( 14 has no row"));
    assert!(found("| Algorithm 1, line 8 |", "| line 8 |").contains("line 8 has no row"));
    assert!(found("| `neg_logits` |", "| `negatives` |").contains("neg_logits has no row"));
    assert!(found("`theory::first_below`", "`theory::below`").contains("there is no theory::below"));
    assert!(found("`theory::first_below`", "first below").contains("names no function"));
    assert!(found("proof only: error of v", "error of v").contains("Lemma 2: names no function"));
    assert!(found("`losses_f64::the_tf_", "`losses_f64::a_tf_").contains("there is no losses_f64::a_tf_"));
}
