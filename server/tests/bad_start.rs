//! Starts that fail: each ends with its own code and a line or two that name the cause.

mod support;

use std::fs;
use std::net::TcpListener;

use support::{Node, Setup, assert_holds, cluster, eventually, free_address, leads};

// The codes are those of `holdfast_server::exit`.
const LISTEN: Option<i32> = Some(69);
const DATA_FOLDER: Option<i32> = Some(73);
const SETTINGS: Option<i32> = Some(78);

/// Checks the final message for people: the settings and the log may print a line each before it.
#[track_caller]
fn assert_short(said: &str) {
    let words = said.lines().filter(|line| line.starts_with("holdfastd: ")).count();
    assert_eq!(words, 1, "{said}");
    assert!(!said.contains("Error {") && !said.contains("Os {"), "a debug dump: {said}");
}

#[test]
fn an_unknown_key_ends_the_start() {
    let setup = Setup::new();
    let file = setup.data.with_extension("toml");
    fs::write(&file, "listne = \"127.0.0.1:1\"").unwrap();

    let (code, said) = setup.flags(&["--config", file.to_str().unwrap()]).fails();

    assert_eq!(code, SETTINGS, "{said}");
    assert_holds(&said, &["unknown key `listne`", "did you mean listen"]);
    assert_short(&said);
}

#[test]
fn listening_outside_loopback_needs_insecure() {
    let (code, said) = Setup::new().flags(&["--admin-listen", "0.0.0.0:7422"]).fails();

    assert_eq!(code, SETTINGS, "{said}");
    assert_holds(&said, &["admin_listen = 0.0.0.0:7422", "--insecure"]);
    assert_short(&said);
}

/// Why a node ends is a line for machines as well, once it knows that it writes such lines.
#[test]
fn the_end_of_a_node_that_logs_json_is_json() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();

    let (code, said) = Setup::new().flags(&["--log-format", "json", "--listen", &address]).fails();

    assert_eq!(code, LISTEN, "{said}");
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let last = lines.last().unwrap();
    assert_eq!((&last["level"], &last["target"]), (&"ERROR".into(), &"holdfastd".into()));
    assert!(last["message"].as_str().unwrap().contains("(listen)"), "{last}");
}

/// Each port in turn; the data folder must be untouched by then.
#[test]
fn a_port_in_use_is_named_before_the_data_folder_is_touched() {
    for (key, flag) in [
        ("(listen)", "--listen"),
        ("(peer_listen)", "--peer-listen"),
        ("(admin_listen)", "--admin-listen"),
    ] {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let members = "1=127.0.0.1:1/127.0.0.1:2 2=127.0.0.1:3/127.0.0.1:4";
        let setup = Setup::new().flags(&[flag, &address, "--members", members]);

        let (code, said) = setup.fails();

        assert_eq!(code, LISTEN, "{said}");
        assert_holds(&said, &[&address, key, "another process uses it"]);
        assert_short(&said);
        assert!(!setup.data.exists(), "{} was made", setup.data.display());
    }
}

#[test]
fn an_address_of_another_machine_is_named() {
    // 192.0.2.0/24 is for documentation: no machine has it.
    let flags = ["--insecure", "--listen", "192.0.2.1:7420"];

    let (code, said) = Setup::new().flags(&flags).fails();

    assert_eq!(code, LISTEN, "{said}");
    assert_holds(&said, &["192.0.2.1:7420 (listen)", "no such address"]);
}

#[test]
fn a_data_folder_that_another_node_uses_is_refused_and_the_other_runs_on() {
    let mut first = Setup::new().starts();

    let (code, said) = Setup::on(&first.setup.data).fails();

    assert_eq!(code, DATA_FOLDER, "{said}");
    assert_holds(&said, &["LOCK", "is in use by process", "another data folder"]);
    assert_short(&said);
    first.assert_runs();
}

#[test]
fn a_data_folder_of_another_node_is_refused() {
    let setup = Setup::new().starts().stop();

    let (code, said) = Setup::on(&setup.data).flags(&["--node-id", "2"]).fails();

    assert_eq!(code, DATA_FOLDER, "{said}");
    assert_holds(&said, &["belongs to node 1", "configured as node 2"]);
    assert_short(&said);
}

#[test]
fn a_data_folder_that_is_a_file_is_refused() {
    let setup = Setup::new();
    fs::write(&setup.data, "no folder").unwrap();

    let (code, said) = setup.fails();

    assert_eq!(code, DATA_FOLDER, "{said}");
    assert_holds(&said, &[setup.data.to_str().unwrap()]);
    assert_short(&said);
}

/// Root may write everywhere, but no user may write in /proc.
#[test]
fn a_data_folder_that_cannot_be_made_is_refused() {
    let (code, said) = Setup::new().flags(&["--data-dir", "/proc/holdfast"]).fails();

    assert_eq!(code, DATA_FOLDER, "{said}");
    assert_holds(&said, &["/proc/holdfast"]);
    assert_short(&said);
}

#[test]
fn a_data_folder_without_its_guard_file_is_refused() {
    let setup = Setup::new().starts().stop();
    fs::remove_file(setup.data.join("guard")).unwrap();

    let (code, said) = setup.fails();

    assert_eq!(code, DATA_FOLDER, "{said}");
    assert_holds(&said, &["guard", "is missing"]);
    assert_short(&said);
}

/// sled alone would open what is left as an empty database.
#[test]
fn a_data_folder_whose_log_was_emptied_or_cut_off_is_refused() {
    for halves_kept in [0, 1] {
        let setup = Setup::new().starts().stop();
        let log = fs::OpenOptions::new().write(true).open(setup.data.join("sled/db")).unwrap();
        log.set_len(halves_kept * log.metadata().unwrap().len() / 2).unwrap();

        let (code, said) = setup.fails();

        assert_eq!(code, DATA_FOLDER, "{said}");
        assert_holds(&said, &[setup.data.to_str().unwrap(), "Keep the folder as it is"]);
        assert_short(&said);
    }
}

#[test]
fn a_data_folder_whose_guard_file_is_damaged_is_refused() {
    let setup = Setup::new().starts().stop();
    let guard = setup.data.join("guard");
    let length = fs::metadata(&guard).unwrap().len();
    fs::write(&guard, vec![0xA5; usize::try_from(length).unwrap()]).unwrap();

    let (code, said) = setup.fails();

    assert_eq!(code, DATA_FOLDER, "{said}");
    assert_holds(&said, &[guard.to_str().unwrap(), "is damaged", "Keep the folder as it is"]);
    assert_short(&said);
}

/// Under its old id the node could vote a second time in a term (I22).
#[test]
fn a_member_whose_data_folder_was_emptied_is_refused_by_its_cluster_and_says_what_to_do() {
    let mut nodes = cluster(3);
    let follower = eventually(|| nodes.iter().position(|node| !leads(node)));
    let setup = nodes.swap_remove(follower.unwrap()).stop();
    fs::remove_dir_all(&setup.data).unwrap();

    let (code, said) = setup.fails();

    assert_eq!(code, DATA_FOLDER, "{said}");
    assert_holds(&said, &["empty data folder", "new node id"]);
    assert_short(&said);
    nodes.iter_mut().for_each(Node::assert_runs);
}

#[test]
fn a_restarted_node_finds_its_ports_free_at_once() {
    let setup = Setup::new().starts().stop();

    setup.starts();
}

/// With fewer files the node would start, and stop at its first snapshot or refuse its peers.
#[test]
fn a_process_that_may_open_too_few_files_is_refused_with_the_number_it_needs() {
    let setup = Setup::new();

    let (code, said) = setup.fails_with_open_files(255);

    assert_eq!(code, SETTINGS, "{said}");
    assert_holds(&said, &["255 files", "at least 256", "ulimit -n", "LimitNOFILE"]);
    assert_short(&said);
    assert!(!setup.data.exists(), "{} was made", setup.data.display());
}

/// A cluster of one has no peers.
#[test]
fn a_single_node_opens_no_peer_port() {
    let taken = TcpListener::bind(free_address()).unwrap();
    let address = taken.local_addr().unwrap().to_string();

    Setup::new().flags(&["--peer-listen", &address]).starts();
}
