//! The known name that somebody most likely meant.

/// Characters of a name that are compared; longer input is not a typing error.
const COMPARED: usize = 64;

/// The candidate that takes the fewest edits; the first of equals.
///
/// Where names are dotted paths, a name that lacks its sections counts as one edit per missing
/// section at most, so that `num_layers` finds `model.num_layers`.
pub(super) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates.into_iter().min_by_key(|candidate| {
        let whole = edits(name, candidate);
        let last = candidate.rsplit_once('.').map(|(_, last)| edits(name, last) + 1);
        last.map_or(whole, |last| whole.min(last))
    })
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn edits(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(COMPARED).collect();
    let b: Vec<char> = b.chars().take(COMPARED).collect();
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = a[i - 1] == b[j - 1];
            let mut best =
                (above[j - 1] + usize::from(!same)).min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, n) in
            [("", "", 0), ("abc", "", 3), ("host", "hots", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(edits(a, b), n, "{a} {b}");
            assert_eq!(edits(b, a), n, "{b} {a}");
        }
    }

    #[test]
    fn a_missing_section_is_found() {
        let names = ["host.blocks", "model.num_layers", "strict"];
        assert_eq!(nearest("num_layer", names), Some("model.num_layers"));
        assert_eq!(nearest("hots.block", names), Some("host.blocks"));
        assert_eq!(nearest("", []), None);
    }
}
