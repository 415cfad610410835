//! Colours of what people read. The text is the same without them, and a program that reads `--json` gets none.

use std::fmt::Display;

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;

/// Whether there are colours (`--color`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colours {
    /// On a terminal, unless the variable `NO_COLOR` is set.
    #[default]
    Auto,
    /// Into a pipe or a file too.
    Always,
    /// None.
    Never,
}

impl Colours {
    /// From here on, for all that this process prints.
    pub fn apply(self) {
        let choice = match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// What a colour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// The title of what follows.
    Title,
    /// As it should be.
    Good,
    /// To be looked at.
    Caution,
    /// Wrong.
    Wrong,
}

impl Tone {
    /// The style of text.
    pub fn style(self) -> Style {
        match self {
            Self::Title => Style::new().bold(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Caution => AnsiColor::Yellow.on_default(),
            Self::Wrong => AnsiColor::Red.on_default().bold(),
        }
    }

    /// The text with this tone. What prints it leaves the colour out where there is to be none.
    pub fn of(self, text: impl Display) -> String {
        let style = self.style();
        format!("{style}{text}{style:#}")
    }
}
