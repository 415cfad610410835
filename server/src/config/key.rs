//! One list of keys, from which the code is made that has to know them.

/// Makes, from one list of documented keys:
///
/// - the structure of checked values,
/// - the *layer*: the same keys, each optional, as a source gives them (a TOML table through serde,
///   flags and environment variables through clap, with the documentation as help),
/// - how the layers lie on one another, and how what is left open gets its default.
macro_rules! settings {
    (
        $(#[doc = $config_doc:literal])*
        $config:ident,
        $(#[doc = $layer_doc:literal])*
        $layer:ident,
        $(
            $(#[doc = $doc:literal])*
            $key:ident: $type:ty = $default:expr, $env:literal $(, arg($($arg:tt)*))?;
        )*
    ) => {
        $(#[doc = $config_doc])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
        pub struct $config {
            $( $(#[doc = $doc])* pub $key: $type, )*
        }

        $(#[doc = $layer_doc])*
        #[derive(Clone, Debug, Default, serde::Deserialize, clap::Args)]
        #[serde(default)]
        pub struct $layer {
            $(
                $(#[doc = $doc])*
                #[arg(long, env = $env, hide_env_values = true, value_name = "VALUE" $(, $($arg)*)?)]
                pub $key: Option<$type>,
            )*
        }

        impl $layer {
            /// The keys, in the order in which they are documented.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// The variables that stand for the keys, in the same order.
            pub const VARIABLES: &[&str] = &[$($env),*];

            /// What `self` says, and what `below` says where `self` is silent.
            #[must_use]
            pub fn over(self, below: Self) -> Self {
                Self { $( $key: self.$key.or(below.$key), )* }
            }

            /// What was said, and the default where nothing was.
            pub fn resolve(self) -> $config {
                $config { $( $key: self.$key.unwrap_or_else(|| $default), )* }
            }
        }
    };
}

pub(super) use settings;
