//! One hiqlite member, or the clients of a measurement of its `dlock`: see ../../README.md.

mod measure;
mod member;

use std::collections::BTreeMap;
use std::error::Error;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|first| first == "member") {
        words.remove(0);
        return member::run(&given(&words)?).await;
    }
    let row = measure::run(&given(&words)?).await?;
    println!("{row}");
    // Tasks of the library are left.
    std::process::exit(0)
}

/// `-name value`, as all programs of this folder take them.
struct Given(BTreeMap<String, String>);

fn given(words: &[String]) -> Outcome<Given> {
    let pairs = words.chunks(2).map(|pair| match pair {
        [name, value] if name.starts_with('-') => Ok((name[1..].to_owned(), value.clone())),
        other => Err(format!("not an argument and its value: {other:?}").into()),
    });
    Ok(Given(pairs.collect::<Outcome<_>>()?))
}

impl Given {
    fn text(&self, name: &str) -> Outcome<&str> {
        Ok(self.0.get(name).ok_or_else(|| format!("-{name} is missing"))?)
    }

    fn number(&self, name: &str) -> Outcome<u64> {
        Ok(self.text(name)?.parse()?)
    }

    fn list(&self, name: &str) -> Outcome<Vec<String>> {
        Ok(self.text(name)?.split(',').map(str::to_owned).collect())
    }
}
