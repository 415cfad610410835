//! Certificate, key and CA bundle of one process, from files that may be replaced.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::certificate::Certificate;
use crate::provider;

/// Longest file that is read, bytes: no bundle of CAs is longer, and a device or a log named by mistake is.
const LONGEST_FILE: u64 = 4 << 20;

/// The files of one side. All are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFiles {
    /// What this side proves itself with; a client may have none.
    pub own: Option<OwnFiles>,
    /// The bundle of CAs that vouch for the other side.
    pub ca: Option<PathBuf>,
}

/// The files with which one side proves itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnFiles {
    /// The certificate, and after it the CAs between it and the root, if there are any.
    pub cert: PathBuf,
    /// Its private key: PKCS #8, SEC1 or PKCS #1.
    pub key: PathBuf,
}

/// Why files are no credentials. What was in use before stays in use.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system does not give the file.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is no regular file of a plausible size.
    #[error("{} is {what}; a PEM file of at most 4 MiB is wanted", file.display())]
    NoPemFile {
        /// The file.
        file: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// No block of the wanted kind is in it.
    #[error("{} has no {wanted}: no PEM block that begins with `-----BEGIN {block}-----`", file.display())]
    Lacks {
        /// The file.
        file: PathBuf,
        /// What is wanted of it.
        wanted: &'static str,
        /// The label of such a block.
        block: &'static str,
    },
    /// A block is there and cannot be read. Never quotes it.
    #[error("{}: {what}", file.display())]
    Broken {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Certificate and key are not of one pair.
    #[error("the key in {} does not belong to the certificate in {}", key.display(), cert.display())]
    KeyOfAnother {
        /// The file with the certificate.
        cert: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// The certificate is not valid now.
    #[error("the certificate in {} {what}", cert.display())]
    NotValidNow {
        /// The file.
        cert: PathBuf,
        /// Since when, or up to when.
        what: String,
    },
}

/// What came of a look at the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// They say what they said.
    Unchanged,
    /// Connections that begin from now on use what they say now.
    Replaced,
}

/// Certificate, key and CA bundle of one process, replaceable while it runs.
pub struct Credentials {
    files: CredentialFiles,
    current: RwLock<Arc<Loaded>>,
}

/// What the files said at one time.
pub(crate) struct Loaded {
    texts: Texts,
    pub(crate) own: Option<Own>,
    /// The CAs that vouch for the other side; empty without a bundle.
    pub(crate) roots: Arc<RootCertStore>,
    ca_ends: Option<SystemTime>,
}

/// One side's certificate with its key.
pub(crate) struct Own {
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) certificate: Certificate,
    /// When the first of the certificates in the file runs out: it, or a CA between it and the root.
    ends: SystemTime,
}

/// The bytes of all files, to tell whether one was replaced.
#[derive(PartialEq, Eq)]
struct Texts {
    cert: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

impl Credentials {
    /// Reads the files; `now` is the wall clock's time.
    ///
    /// # Errors
    ///
    /// [`FileError`].
    pub fn load(files: CredentialFiles, now: SystemTime) -> Result<Self, FileError> {
        let texts = Texts::read(&files)?;
        let loaded = Loaded::of(texts, &files, now)?;
        Ok(Self { files, current: RwLock::new(Arc::new(loaded)) })
    }

    /// Reads the files again. Connections that exist are not touched.
    ///
    /// # Errors
    ///
    /// [`FileError`]: what was in use stays in use, also where only one of the files is broken.
    pub fn reload(&self, now: SystemTime) -> Result<Reloaded, FileError> {
        self.reload_if(now, |_| Ok(()))
    }

    /// As [`Credentials::reload`], if `check` agrees with the certificate in the new files.
    ///
    /// # Errors
    ///
    /// [`FileError`], or that of `check`: what was in use stays in use.
    pub fn reload_if<E: From<FileError>>(
        &self,
        now: SystemTime,
        check: impl FnOnce(Option<&Certificate>) -> Result<(), E>,
    ) -> Result<Reloaded, E> {
        let texts = Texts::read(&self.files)?;
        if texts == self.current().texts {
            return Ok(Reloaded::Unchanged);
        }
        let loaded = Loaded::of(texts, &self.files, now)?;
        check(loaded.own.as_ref().map(|own| &own.certificate))?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
        Ok(Reloaded::Replaced)
    }

    /// The certificate in use.
    pub fn certificate(&self) -> Option<Certificate> {
        self.current().own.as_ref().map(|own| own.certificate.clone())
    }

    /// When each file in use runs out: with the first of its certificates.
    pub fn ends(&self) -> Vec<(&Path, SystemTime)> {
        let loaded = self.current();
        let own = self.files.own.as_ref().map(|files| files.cert.as_path());
        let own = own.zip(loaded.own.as_ref().map(|own| own.ends));
        own.into_iter().chain(self.files.ca.as_deref().zip(loaded.ca_ends)).collect()
    }

    pub(crate) fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Shows no byte of a key.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Texts {
    fn read(files: &CredentialFiles) -> Result<Self, FileError> {
        let read =
            |file: Option<&PathBuf>| file.map_or_else(|| Ok(Vec::new()), |file| text_of(file));
        Ok(Self {
            cert: read(files.own.as_ref().map(|own| &own.cert))?,
            key: read(files.own.as_ref().map(|own| &own.key))?,
            ca: read(files.ca.as_ref())?,
        })
    }
}

impl Loaded {
    fn of(texts: Texts, files: &CredentialFiles, now: SystemTime) -> Result<Self, FileError> {
        let own = files.own.as_ref().map(|files| Own::of(&texts, files, now)).transpose()?;
        let mut roots = RootCertStore::empty();
        let mut ca_ends = None;
        if let Some(file) = &files.ca {
            let cas = certificates(&texts.ca, file)?;
            ca_ends = Some(first_and_end(&cas, file)?.1);
            for (at, ca) in cas.into_iter().enumerate() {
                roots.add(ca).map_err(|error| nth_is_broken(at, file, &error))?;
            }
        }
        Ok(Self { texts, own, roots: Arc::new(roots), ca_ends })
    }
}

impl Own {
    fn of(texts: &Texts, files: &OwnFiles, now: SystemTime) -> Result<Self, FileError> {
        let chain = certificates(&texts.cert, &files.cert)?;
        let (certificate, ends) = first_and_end(&chain, &files.cert)?;
        valid(&certificate, &files.cert, now)?;
        let key = key(&texts.key, &files.key)?;
        let certified =
            CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    FileError::KeyOfAnother { cert: files.cert.clone(), key: files.key.clone() }
                }
                error => FileError::Broken { file: files.key.clone(), what: error.to_string() },
            })?;
        Ok(Self { certified: Arc::new(certified), certificate, ends })
    }
}

fn text_of(file: &Path) -> Result<Vec<u8>, FileError> {
    let io = |source| FileError::Io { file: file.to_owned(), source };
    let no_pem_file = |what| FileError::NoPemFile { file: file.to_owned(), what };
    let found = fs::metadata(file).map_err(io)?;
    match (found.is_dir(), found.is_file(), found.len()) {
        (true, ..) => Err(no_pem_file("a directory")),
        (_, false, _) => Err(no_pem_file("no regular file")),
        (.., LONGEST_FILE..) => Err(no_pem_file("too long")),
        _ => fs::read(file).map_err(io),
    }
}

fn certificates(text: &[u8], file: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let broken =
        |error| FileError::Broken { file: file.to_owned(), what: pem_error(&error).to_owned() };
    let read = read.map_err(broken)?;
    if read.is_empty() {
        let (wanted, block) = ("certificate", "CERTIFICATE");
        return Err(FileError::Lacks { file: file.to_owned(), wanted, block });
    }
    Ok(read)
}

fn key(text: &[u8], file: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => FileError::Lacks {
            file: file.to_owned(),
            wanted: "private key that is not encrypted",
            block: "PRIVATE KEY",
        },
        error => FileError::Broken { file: file.to_owned(), what: pem_error(&error).to_owned() },
    })
}

/// Without the text of the file, which may be a key.
pub(crate) fn pem_error(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a PEM block has no end",
        pem::Error::IllegalSectionStart { .. } => "a PEM block begins with a broken line",
        pem::Error::Base64Decode(_) => "a PEM block is not base64",
        pem::Error::NoItemsFound => "no PEM block is in it",
        _ => "it is no PEM file",
    }
}

/// The first certificate of a file, and when the first of all of them runs out.
fn first_and_end(
    chain: &[CertificateDer<'_>],
    file: &Path,
) -> Result<(Certificate, SystemTime), FileError> {
    // `certificates` gives at least one.
    let first = described(&chain[0], 0, file)?;
    let mut ends = first.ends;
    for (at, der) in chain.iter().enumerate().skip(1) {
        ends = ends.min(described(der, at, file)?.ends);
    }
    Ok((first, ends))
}

fn described(der: &CertificateDer<'_>, at: usize, file: &Path) -> Result<Certificate, FileError> {
    Certificate::read(der).map_err(|error| nth_is_broken(at, file, &error))
}

fn nth_is_broken(at: usize, file: &Path, error: &dyn fmt::Display) -> FileError {
    let what = format!("certificate {} in it cannot be used: {error}", at + 1);
    FileError::Broken { file: file.to_owned(), what }
}

fn valid(certificate: &Certificate, cert: &Path, now: SystemTime) -> Result<(), FileError> {
    let days = |span: std::time::Duration| span.as_secs() / 86_400;
    let what = if let Ok(left) = certificate.begins.duration_since(now)
        && !left.is_zero()
    {
        format!("is not valid yet; it will be in {} days; is the clock right?", days(left))
    } else if let Ok(over) = now.duration_since(certificate.ends)
        && !over.is_zero()
    {
        format!("has ended {} days ago", days(over))
    } else {
        return Ok(());
    };
    Err(FileError::NotValidNow { cert: cert.to_owned(), what })
}
