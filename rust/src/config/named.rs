//! Enums that configuration knows by name.

/// Declares an enum with its names: `ALL`, `name`, `Display`, `FromStr` (any case) and serde.
macro_rules! named_enum {
    (
        $(#[$meta:meta])* $kind:ident, $error:ident, $what:literal:
        $($(#[$doc:meta])* $variant:ident = $name:literal,)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[non_exhaustive]
        pub enum $kind {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl $kind {
            /// Every value, in declaration order.
            pub const ALL: &[$kind] = &[$($kind::$variant),*];

            /// The name used in configuration and reports.
            pub const fn name(self) -> &'static str {
                match self { $($kind::$variant => $name,)* }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        #[doc = concat!("A name that is no ", $what, ".")]
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("{:?} is no {} of this version; one of {}", .0, $what, [$($name),*].join(", "))]
        pub struct $error(String);

        impl std::str::FromStr for $kind {
            type Err = $error;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                Self::ALL
                    .iter()
                    .copied()
                    .find(|kind| kind.name().eq_ignore_ascii_case(name))
                    .ok_or_else(|| $error($crate::config::finding::clip(name)))
            }
        }
    };
}

pub(super) use named_enum;
