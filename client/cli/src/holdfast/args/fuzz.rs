//! Mutated command lines: the parser accepts them or refuses with a message; a duration is never
//! shorter than written.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use holdfast_fuzz::{Outcome, Target, script};

use super::*;

fn line(words: &[&str]) -> Vec<u8> {
    let mut line = Vec::new();
    for word in words {
        script::push(&mut line, 0, word.as_bytes());
    }
    line
}

#[test]
fn no_command_line_brings_the_reader_down() {
    let seeds = [
        line(&["lock", "--wait", "30s", "--grace=500ms", "a", "b", "--shared", "--", "job", "-x"]),
        line(&["try", "--any", "a", "b", "--endpoints", "[::1]:7420,b:1", "--json", "--", "job"]),
        line(&["check-token", "orders/42", "18446744073709551615"]),
        line(&["bench", "--workload", "w2", "--members", "3", "--clients", "100000"]),
        line(&["list", "--endpoints", "a:1", "jobs/"]),
    ];
    Target::new("command-lines", seeds).run(|bytes| {
        let words = script::steps(bytes).map(|(_, word)| OsStr::from_bytes(word));
        let words = std::iter::once(OsStr::new("holdfast")).chain(words);
        match Cli::try_parse_from(words) {
            Ok(cli) => {
                match cli.global.builder().map(|builder| builder.reader().map_err(Failure::from)) {
                    Ok(Ok(_)) => {
                        Outcome::came_to(format!("{:?}", std::mem::discriminant(&cli.command)))
                    }
                    Ok(Err(failure)) | Err(failure) => Outcome::refused(&format!("{failure:?}")),
                }
            }
            Err(error) => Outcome::refused(&error.kind()),
        }
    });
}

#[test]
fn no_text_brings_the_reader_of_durations_down() {
    let seeds = ["10s", "500ms", "2m", "1h", "0", "18446744073709551615ms"].map(Into::into);
    Target::new("durations", seeds).memory(16, 4 << 10).run(|bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Outcome::refused(&"not text") };
        let read = duration(text);
        if let Ok(read) = read {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            let number: u128 = digits.parse().unwrap();
            assert!(read.as_millis() >= number, "{text} became {read:?}");
        }
        Outcome::of(&read)
    });
}
