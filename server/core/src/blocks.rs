//! A stream of bytes cut into blocks with checksums, so that a reader notices damage and an early
//! end.
//!
//! ```text
//! block = len:u32 (1 to 65 536) ‖ crc32:u32 of the bytes ‖ bytes
//! end   = 0:u32 ‖ crc32:u32 of the bytes of all blocks
//! ```
//!
//! All numbers are little-endian. The last checksum covers the order of the blocks.

use std::io::{self, Read, Write};

use crc32fast::Hasher;

const BLOCK_BYTES_MAX: usize = 64 * 1024;

/// The error for bytes other than those that were written.
pub(crate) fn damaged(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

/// Cuts a stream into blocks with checksums.
pub(crate) struct BlockWriter<'a, W> {
    out: &'a mut W,
    block: Vec<u8>,
    whole: Hasher,
}

impl<'a, W: Write> BlockWriter<'a, W> {
    pub(crate) fn new(out: &'a mut W) -> Self {
        Self { out, block: Vec::with_capacity(BLOCK_BYTES_MAX), whole: Hasher::new() }
    }

    fn end_block(&mut self) -> io::Result<()> {
        let len = u32::try_from(self.block.len()).map_err(io::Error::other)?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(&crc32fast::hash(&self.block).to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.whole.update(&self.block);
        self.block.clear();
        Ok(())
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        self.out.write_all(&0_u32.to_le_bytes())?;
        self.out.write_all(&self.whole.finalize().to_le_bytes())
    }
}

impl<W: Write> Write for BlockWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BLOCK_BYTES_MAX - self.block.len();
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.block.extend_from_slice(taken);
        if self.block.len() == BLOCK_BYTES_MAX {
            self.end_block()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Joins the blocks again; returns no byte of a block before it has checked that block.
pub(crate) struct BlockReader<'a, R> {
    input: &'a mut R,
    block: Vec<u8>,
    /// How many bytes of `block` were returned.
    taken: usize,
    whole: Hasher,
    ended: bool,
    /// Whether the input ended inside a block, or before the end.
    cut_off: bool,
}

impl<'a, R: Read> BlockReader<'a, R> {
    pub(crate) fn new(input: &'a mut R) -> Self {
        Self {
            input,
            block: Vec::new(),
            taken: 0,
            whole: Hasher::new(),
            ended: false,
            cut_off: false,
        }
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    fn next_block(&mut self) -> io::Result<()> {
        let read = self.read_block();
        if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            self.cut_off = true;
        }
        read
    }

    fn read_block(&mut self) -> io::Result<()> {
        let len = self.read_number()?;
        let crc = self.read_number()?;
        self.taken = 0;
        self.block.clear();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > BLOCK_BYTES_MAX {
            return Err(damaged(format!("a block of {len} bytes")));
        }
        self.block.resize(len, 0);
        self.input.read_exact(&mut self.block)?;
        self.ended = len == 0;
        self.whole.update(&self.block);
        let expected =
            if self.ended { self.whole.clone().finalize() } else { crc32fast::hash(&self.block) };
        if crc != expected {
            return Err(damaged("a checksum does not match"));
        }
        Ok(())
    }

    fn read_number(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.input.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads the end; nothing may follow it.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.end()?;
        if self.input.read(&mut [0])? != 0 {
            return Err(damaged("there is more behind its end"));
        }
        Ok(())
    }

    /// Reads the end.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        if self.taken < self.block.len() {
            return Err(damaged("its last block is longer than its content"));
        }
        if !self.ended {
            self.next_block()?;
        }
        if !self.ended {
            return Err(damaged("there is more behind its end"));
        }
        Ok(())
    }
}

impl<R: Read> Read for BlockReader<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.block.len() && !self.ended {
            self.next_block()?;
        }
        let mut rest = self.block.get(self.taken..).unwrap_or_default();
        let len = rest.read(bytes)?;
        self.taken += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: usize = 8 + BLOCK_BYTES_MAX;

    /// Two full blocks of different bytes, a shorter one, and the end.
    fn three_blocks() -> (Vec<u8>, Vec<u8>) {
        let content: Vec<u8> = (0..150_000_u32).flat_map(u32::to_le_bytes).take(150_000).collect();
        let mut bytes = Vec::new();
        let mut writer = BlockWriter::new(&mut bytes);
        writer.write_all(&content).expect("a vector takes everything");
        writer.finish().expect("a vector takes everything");
        (content, bytes)
    }

    fn read(mut bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut reader = BlockReader::new(&mut bytes);
        let mut content = Vec::new();
        reader.read_to_end(&mut content)?;
        reader.finish()?;
        Ok(content)
    }

    #[test]
    fn blocks_come_back_as_one_stream() {
        let (content, bytes) = three_blocks();
        assert_eq!(read(&bytes).expect("nothing was harmed"), content);
    }

    /// Each block is intact; only the checksum at the end differs.
    #[test]
    fn a_block_that_is_missing_or_out_of_place_is_noticed() {
        let (_, bytes) = three_blocks();
        let (first, rest) = bytes.split_at(FULL);
        let (second, end) = rest.split_at(FULL);
        let swapped = [second, first, end].concat();
        let missing = [first, end].concat();
        let doubled = [first, first, second, end].concat();
        for harmed in [swapped, missing, doubled] {
            let error = read(&harmed).expect_err("the harm was not seen");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
