//! An input that is a sequence of steps: each a kind, a length, and that many bytes.
//!
//! For targets that keep state between messages. Every input is a script: what is cut off ends it,
//! so that a mutation changes a step and leaves the others.

/// Appends a step.
///
/// # Panics
///
/// The step is longer than 65,535 bytes.
pub fn push(script: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).expect("a step is short");
    script.push(kind);
    script.extend_from_slice(&len.to_le_bytes());
    script.extend_from_slice(bytes);
}

/// The steps of a script: kind and bytes.
pub fn steps(mut script: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([kind, low, high], rest) = script.split_first_chunk::<3>()?;
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        script = rest;
        Some((*kind, bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pushed_is_read_and_a_cut_shortens_the_last_step() {
        let mut script = Vec::new();
        push(&mut script, 1, b"one");
        push(&mut script, 2, b"");
        push(&mut script, 3, b"three");
        let read = |script| steps(script).collect::<Vec<_>>();
        assert_eq!(read(&script), [(1, &b"one"[..]), (2, b""), (3, b"three")]);
        let cut = &script[..script.len() - 2];
        assert_eq!(read(cut), [(1, &b"one"[..]), (2, b""), (3, b"thr")]);
    }
}
