//! Closed sets whose values are labels: in metrics, on screen, and in the HTTP API.

/// Gives each of these enums its labels, in order.
#[macro_export]
macro_rules! labels {
    ($($kind:ident { $($variant:ident = $label:literal),* $(,)? })*) => { $(
        impl $kind {
            /// All there are, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The label's value, in metrics and on screen.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $label),* }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    )* };
}
