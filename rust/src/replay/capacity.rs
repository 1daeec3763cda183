//! How large a cache is meant to be: in blocks, or as a share of a trace.

use std::fmt;
use std::str::FromStr;

/// Digits after the point that a percentage may have.
const DECIMALS: usize = 6;

/// `1 %` in units of the last decimal.
const ONE_PERCENT: u64 = 10u64.pow(DECIMALS as u32);

/// A number of blocks, or a share of a trace's unique blocks.
///
/// Read from `N` or `N%`; a share is exact decimal arithmetic, rounded down to whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capacity {
    /// So many blocks.
    Blocks(u64),
    /// So many millionths of a percent of the trace's unique blocks.
    Share(u64),
}

impl Capacity {
    /// Blocks for a trace with `unique_blocks` of them.
    pub fn blocks(self, unique_blocks: u32) -> u64 {
        match self {
            Capacity::Blocks(blocks) => blocks,
            Capacity::Share(share) => {
                let blocks = u128::from(unique_blocks) * u128::from(share);
                // At most 2^32 * 2^64 / 10^8, which is below 2^70: saturate for the absurd.
                u64::try_from(blocks / u128::from(100 * ONE_PERCENT)).unwrap_or(u64::MAX)
            }
        }
    }
}

impl fmt::Display for Capacity {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Capacity::Blocks(blocks) => write!(f, "{blocks}"),
            Capacity::Share(share) => {
                let decimals = format!("{:0DECIMALS$}", share % ONE_PERCENT);
                let number = format!("{}.{decimals}", share / ONE_PERCENT);
                write!(f, "{}%", number.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// Text that is neither `N` nor `N%`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "capacity: {text:?} is neither a number of blocks (10000) nor a percentage of the trace's \
     unique blocks with at most {DECIMALS} decimals (2.5%)"
)]
pub struct ParseCapacityError {
    text: String,
}

impl FromStr for Capacity {
    type Err = ParseCapacityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = match text.trim().strip_suffix('%') {
            Some(percent) => share(percent.trim_end()).map(Capacity::Share),
            None => digits(text.trim()).map(Capacity::Blocks),
        };
        parsed.ok_or_else(|| ParseCapacityError { text: text.to_owned() })
    }
}

fn share(percent: &str) -> Option<u64> {
    let (whole, decimals) = percent.split_once('.').unwrap_or((percent, "0"));
    if decimals.len() > DECIMALS {
        return None;
    }
    let scale = 10u64.pow((DECIMALS - decimals.len()) as u32);
    digits(whole)?.checked_mul(ONE_PERCENT)?.checked_add(digits(decimals)? * scale)
}

/// Digits alone: the standard parser would take a sign as well.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn shares_round_down_exactly() {
        let blocks = |text: &str, unique| text.parse::<Capacity>().unwrap().blocks(unique);
        assert_eq!(blocks("29%", 100), 29);
        assert_eq!(blocks("0.5 %", 182_790), 913);
        assert_eq!(blocks("12.000001%", 100_000_000), 12_000_001);
        assert_eq!(blocks("200%", 7), 14);
        assert_eq!((blocks("0%", 7), blocks("0", 7), blocks(" 12 ", 7)), (0, 0, 12));
        assert_eq!(blocks(&u64::MAX.to_string(), 7), u64::MAX);
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["0", "12", "0%", "5%", "100%", "2.5%", "0.000001%"] {
            assert_eq!(text.parse::<Capacity>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_no_capacity() {
        for text in ["", "%", "-1", "+1", "1.5", "1.%", ".5%", "1.0000001%", "1e3", "nan%"] {
            let message = text.parse::<Capacity>().unwrap_err().to_string();
            assert!(message.contains(&format!("{text:?}")), "{message}");
        }
        assert!(format!("{}%", u64::MAX).parse::<Capacity>().is_err());
    }
}
