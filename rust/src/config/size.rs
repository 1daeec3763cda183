//! Byte counts as people write them.
//!
//! A number, optionally with a fraction and `_` between digits, and a unit: `B`, the decimal `kB`
//! `MB` `GB` `TB`, or the binary `KiB` `MiB` `GiB` `TiB`, in any case. A bare `G` is refused: half
//! the world reads it one way and half the other.

/// Reads a byte count; the error says what is wrong with the text.
///
/// A fraction is exact as long as it makes whole bytes; what is left of a byte is cut off.
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    let refuse = |reason| ParseSizeError { text: super::finding::clip(text), reason };
    let trimmed = text.trim();
    let unit_at = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '_' || c == '.'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(unit_at);
    let scale = unit_bytes(unit.trim()).ok_or_else(|| refuse("the unit is not known"))?;

    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (whole, _) = digits(whole).ok_or_else(|| refuse("it does not start with a number"))?;
    let mut bytes = whole.checked_mul(scale).ok_or_else(|| refuse("it is too large"))?;
    if number.contains('.') {
        let (part, count) = digits(fraction).ok_or_else(|| refuse("the fraction is malformed"))?;
        // Nine digits and a tebibyte still fit u128.
        if count > 9 {
            return Err(refuse("the fraction has more than nine digits"));
        }
        bytes = bytes.saturating_add(part * scale / 10_u128.pow(count));
    }
    u64::try_from(bytes).map_err(|_| refuse("it is too large"))
}

/// The number that `text` spells and how many digits it has.
fn digits(text: &str) -> Option<(u128, u32)> {
    let mut value = 0_u128;
    let mut count = 0;
    for c in text.chars().filter(|&c| c != '_') {
        value = value.checked_mul(10)?.checked_add(u128::from(c.to_digit(10)?))?;
        count += 1;
    }
    (count > 0).then_some((value, count))
}

fn unit_bytes(unit: &str) -> Option<u128> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    })
}

/// A byte count for messages: the largest binary unit that keeps three digits.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let step = ((bytes.ilog2() / 10) as usize).min(UNITS.len());
    let value = bytes as f64 / (1_u64 << (10 * step)) as f64;
    let unit = UNITS[step - 1];
    if value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{value:.2} {unit}") }
}

/// A text that is no byte count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no size: {reason}; write a number and one of B kB MB GB TB KiB MiB GiB TiB")]
pub struct ParseSizeError {
    text: String,
    reason: &'static str,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_spellings() {
        for (text, bytes) in [
            ("0", 0),
            ("1_000_000", 1_000_000),
            ("64MiB", 64 << 20),
            ("2 GB", 2_000_000_000),
            (" 1.5 gib ", 3 << 29),
            ("0.1 kB", 100),
            ("7b", 7),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_could_be_misread_is_refused() {
        for text in
            ["", "G", "4G", "-1", "GiB", "1.GiB", "1e9", "4 GiB GiB", "18446744073709551616"]
        {
            let message = parse_size(text).unwrap_err().to_string();
            assert!(message.contains("MiB"), "{message}");
        }
        assert!(parse_size(&"9".repeat(10_000)).unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn sizes_read_back_as_written() {
        for bytes in [0, 1023, 1024, 64 << 20, 3 << 40] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = parse_size(&text);
        }

        #[test]
        fn any_size_can_be_printed(bytes: u64) {
            proptest::prop_assert!(!format_size(bytes).is_empty());
        }
    }
}
