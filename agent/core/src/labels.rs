//! Closed sets whose values are labels: in metrics, on screen and in the HTTP API.

/// Defines enums with a label per variant, also in JSON.
#[macro_export]
macro_rules! labels {
    ($($(#[$meta:meta])* pub enum $kind:ident {
        $($(#[$doc:meta])* $variant:ident = $label:literal),* $(,)?
    })*) => { $(
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
            serde::Serialize, serde::Deserialize,
        )]
        pub enum $kind {
            $($(#[$doc])* #[serde(rename = $label)] $variant),*
        }

        impl $kind {
            /// All values, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The label.
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
