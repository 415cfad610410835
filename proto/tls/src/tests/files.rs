use std::time::SystemTime;

use super::{Office, future, month, node_name, past};
use crate::make::Ca;
use crate::{Certificate, CredentialFiles, Credentials, FileError, OwnFiles, Reloaded};

fn refused(files: &CredentialFiles) -> String {
    Credentials::load(files.clone(), SystemTime::now()).unwrap_err().to_string()
}

fn own(files: &mut CredentialFiles) -> &mut OwnFiles {
    files.own.as_mut().unwrap()
}

#[test]
fn each_wrong_file_is_named_with_what_is_wrong() {
    let office = Office::new();
    let pair = office.ca.client("a", month()).unwrap();
    let other = office.ca.client("b", month()).unwrap();
    let good = office.files("good", &pair);
    let cut = pair.cert_pem.replace("-----END CERTIFICATE-----", "");
    let garbled =
        pair.cert_pem.replace("-----BEGIN CERTIFICATE-----\n", "-----BEGIN CERTIFICATE-----\n????");
    let no_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let encrypted = pair.key_pem.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");

    for (file, text, says) in [
        ("cert", "", "has no certificate"),
        ("cert", cut.as_str(), "a PEM block has no end"),
        ("cert", garbled.as_str(), "not base64"),
        ("cert", no_certificate, "certificate 1 in it cannot be used"),
        ("cert", pair.key_pem.as_str(), "has no certificate"),
        ("cert", other.cert_pem.as_str(), "does not belong to the certificate"),
        ("key", "", "has no private key"),
        ("key", encrypted.as_str(), "has no private key that is not encrypted"),
        ("key", other.key_pem.as_str(), "does not belong to the certificate"),
        ("ca", "", "has no certificate"),
        ("ca", no_certificate, "certificate 1 in it cannot be used"),
    ] {
        let path = office.write(&format!("wrong-{file}.pem"), text);
        let mut files = good.clone();
        match file {
            "cert" => own(&mut files).cert.clone_from(&path),
            "key" => own(&mut files).key.clone_from(&path),
            _ => files.ca = Some(path.clone()),
        }
        let said = refused(&files);
        assert!(
            said.contains(says) && said.contains(&path.display().to_string()),
            "{file}: {said}"
        );
        for line in pair.key_pem.lines().filter(|line| !line.starts_with('-')) {
            assert!(!said.contains(line), "a key is quoted");
        }
    }
}

#[test]
fn a_file_that_is_none_is_named_too() {
    let office = Office::new();
    for (path, says) in [
        (office.path("nowhere.pem"), "No such file"),
        (office.folder.path().to_owned(), "a directory"),
        ("/dev/zero".into(), "no regular file"),
    ] {
        let said = refused(&CredentialFiles { own: None, ca: Some(path.clone()) });
        assert!(said.contains(says) && said.contains(&path.display().to_string()), "{said}");
    }
}

#[test]
fn a_certificate_of_ones_own_has_to_be_valid_now() {
    let office = Office::new();
    for (term, says) in [(past(), "has ended 1 days ago"), (future(), "not valid yet")] {
        let files = office.files("late", &office.ca.client("a", term).unwrap());
        let error = Credentials::load(files, SystemTime::now()).unwrap_err();
        assert!(matches!(error, FileError::NotValidNow { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn what_is_replaced_counts_from_then_on_and_what_is_broken_does_not() {
    let office = Office::new();
    let now = SystemTime::now();
    let files = office.files("node", &office.ca.node(&node_name(Some(1)), &[], month()).unwrap());
    let credentials = Credentials::load(files, now).unwrap();
    let named = || credentials.certificate().unwrap().node_name().unwrap().id;
    assert_eq!(credentials.reload(now).unwrap(), Reloaded::Unchanged);

    // Of a pair only one file so far.
    let next = office.ca.node(&node_name(Some(2)), &[], month()).unwrap();
    office.write("node.pem", &next.cert_pem);
    assert!(matches!(credentials.reload(now), Err(FileError::KeyOfAnother { .. })));
    assert_eq!(named(), Some(1));

    office.write("node.key", &next.key_pem);
    assert_eq!(credentials.reload(now).unwrap(), Reloaded::Replaced);
    assert_eq!(named(), Some(2));

    std::fs::remove_file(office.path("ca.pem")).unwrap();
    assert!(matches!(credentials.reload(now), Err(FileError::Io { .. })));
    assert_eq!((named(), credentials.current().roots.len()), (Some(2), 1));
}

#[test]
fn a_certificate_that_the_check_refuses_changes_nothing() {
    let office = Office::new();
    let now = SystemTime::now();
    let files_of =
        |id| office.files("node", &office.ca.node(&node_name(Some(id)), &[], month()).unwrap());
    let credentials = Credentials::load(files_of(1), now).unwrap();
    let is_the_firsts = |shown: Option<&Certificate>| -> Result<(), Box<dyn std::error::Error>> {
        let found = shown.and_then(Certificate::node_name);
        if found == Some(node_name(Some(1))) { Ok(()) } else { Err("it is another's".into()) }
    };

    files_of(2);
    let refused = credentials.reload_if(now, is_the_firsts).unwrap_err();
    assert_eq!(refused.to_string(), "it is another's");
    assert_eq!(credentials.certificate().unwrap().node_name(), Some(node_name(Some(1))));

    files_of(1);
    assert_eq!(credentials.reload_if(now, is_the_firsts).unwrap(), Reloaded::Replaced);
}

#[test]
fn the_end_of_each_file_is_known_of_a_bundle_the_first() {
    let office = Office::new();
    let short = super::Term { now: SystemTime::now(), lasts: 3 * super::DAY };
    let second = crate::make::ca("second CA", short).unwrap();
    office.write("ca.pem", &format!("{}{}", office.ca_pem, second.cert_pem));

    let credentials = office.client("a");

    let days =
        |ends: SystemTime| ends.duration_since(SystemTime::now()).unwrap().as_secs() / 86_400;
    let ends: Vec<_> = credentials.ends().into_iter().map(|(_, ends)| days(ends)).collect();
    assert_eq!(ends, [29, 2]);
    assert_eq!(credentials.current().roots.len(), 2);
}

#[test]
fn a_ca_below_a_certificate_may_be_the_first_in_its_file_to_end() {
    let office = Office::new();
    let now = SystemTime::now();
    let short = super::Term { now, lasts: 3 * super::DAY };
    let between = crate::make::ca("CA between", short).unwrap();
    let mut pair = office.ca.client("a", month()).unwrap();
    pair.cert_pem.push_str(&between.cert_pem);

    let credentials = Credentials::load(office.files("a", &pair), now).unwrap();

    let (file, ends) = credentials.ends()[0];
    assert_eq!(file, office.path("a.pem"));
    assert_eq!(ends.duration_since(now).unwrap().as_secs() / 86_400, 2);
    assert!(credentials.certificate().unwrap().ends > ends, "the client's own is the first");
}

#[test]
fn no_text_for_people_shows_a_key() {
    let office = Office::new();
    let pair = office.ca.client("a", month()).unwrap();
    let credentials = office.credentials("a", &pair, month());

    let shown = format!("{credentials:?} {:?} {:?}", credentials.certificate(), credentials.ends());

    for line in pair.key_pem.lines().filter(|line| !line.starts_with('-')) {
        assert!(!shown.contains(line), "a key is shown");
    }
}

#[test]
fn a_ca_signs_with_its_own_key_only() {
    let office = Office::new();
    let other = crate::make::ca("other CA", month()).unwrap();
    for (cert_pem, key_pem) in [
        (office.ca_pem.as_str(), ""),
        (office.ca_pem.as_str(), other.key_pem.as_str()),
        ("", other.key_pem.as_str()),
    ] {
        let error = Ca::read(cert_pem, key_pem).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("the CA cannot be used: "), "{error}");
    }
    assert!(Ca::read(&other.cert_pem, &other.key_pem).is_ok());
}
