//! Settings that are legal, and that few want: sentences for `holdfastd check-config`.

use std::path::Path;

use rustix::fs::statfs;

use super::Config;

/// The shortest session that outlives a change of leader for sure: so many of the longest election time-outs, as a
/// vote may be split, and the client has to find the new leader.
const ELECTIONS_PER_TTL: u64 = 4;

/// File systems whose data does not last, or whose `fsync` and locks cannot be relied on, by the number that statfs(2)
/// gives.
const FILE_SYSTEMS: [(i128, &str); 6] = [
    (0x0102_1994, "tmpfs, which a restart of the machine empties"),
    (0x8584_58f6, "ramfs, which a restart of the machine empties"),
    (0x6969, "NFS, where a sync or a lock may not be one"),
    (0xff53_4d42, "CIFS, where a sync or a lock may not be one"),
    (0xfe53_4d42, "SMB, where a sync or a lock may not be one"),
    (0x794c_7630, "an overlay, as a container has it: it ends with the container"),
];

impl Config {
    /// A sentence for each setting, or combination of them, that is legal and unwise.
    pub fn unwise(&self) -> Vec<String> {
        let found = [
            self.even_members(),
            self.one_host(),
            self.loopback_advertised(),
            self.unprotected(),
            self.short_sessions(),
            self.loud(),
            self.open_admin_port(),
            file_system(&self.node.data_dir),
        ];
        found.into_iter().flatten().collect()
    }

    fn even_members(&self) -> Option<String> {
        let members = self.cluster.members.0.len();
        let survives = members.checked_sub(1)? / 2;
        let is_even = members > 0 && members.is_multiple_of(2);
        is_even.then(|| {
            format!(
                "members: {members} members go on without {survives} of them, no more than {} do, and any of them \
                 may fail; an odd number is better",
                members - 1
            )
        })
    }

    /// Several members under one host name or address, other than on one machine for a trial.
    fn one_host(&self) -> Option<String> {
        let host = |address: &str| address.rsplit_once(':').map(|(host, _)| host.to_owned());
        let members = &self.cluster.members.0;
        let mut hosts: Vec<_> =
            members.iter().filter_map(|member| host(member.peer_advertise.as_str())).collect();
        hosts.sort_unstable();
        let twice = hosts.windows(2).find(|two| two[0] == two[1] && !is_loopback(&two[0]))?;
        Some(format!("members: more than one is on {}: they fail together", twice[0]))
    }

    /// Clients elsewhere are sent to this machine, which is theirs.
    fn loopback_advertised(&self) -> Option<String> {
        let node = &self.node;
        let host = node.advertise.as_str().rsplit_once(':')?.0;
        (!node.listen.is_loopback() && is_loopback(host)).then(|| {
            format!(
                "advertise: clients are sent to {}, which is their own machine; give the address of this one",
                node.advertise
            )
        })
    }

    fn unprotected(&self) -> Option<String> {
        let node = &self.node;
        let is_open =
            !node.listen.is_loopback() || self.has_peers && !node.peer_listen.is_loopback();
        (node.insecure && is_open).then(|| {
            "insecure: whoever reaches these ports may take and end every lock, and read all names and values; \
             docs/security.md goes to TLS without losing one"
                .to_owned()
        })
    }

    fn short_sessions(&self) -> Option<String> {
        let least = self.node.election_max_ms.saturating_mul(ELECTIONS_PER_TTL);
        let ttl = self.cluster.ttl_default_ms;
        (self.has_peers && ttl < least).then(|| {
            format!(
                "ttl_default_ms: a change of leader may take longer than {ttl} ms, and clients lose their locks then; \
                 {least} or more"
            )
        })
    }

    fn loud(&self) -> Option<String> {
        let level = &self.node.log_level;
        let is_loud = |part: &str| matches!(part.trim(), "debug" | "trace");
        level.split(',').any(is_loud).then(|| {
            format!("log_level: {level} writes lines for every request; locks are slower, and disks fill")
        })
    }

    fn open_admin_port(&self) -> Option<String> {
        let node = &self.node;
        let is_open = !node.admin_listen.is_loopback() && node.tls_cert.as_os_str().is_empty();
        is_open
            .then(|| "admin_listen: whoever reaches it reads the metrics, unencrypted".to_owned())
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The file system of the folder, or of the nearest folder above it that exists.
fn file_system(folder: &Path) -> Option<String> {
    let found = folder.ancestors().map(nearest).find_map(|folder| statfs(folder).ok())?;
    let number = i128::from(found.f_type);
    let (_, what) = FILE_SYSTEMS.iter().find(|(magic, _)| *magic == number)?;
    Some(format!("data_dir: {} is on {what}", folder.display()))
}

/// The empty path stands for the folder of the process.
fn nearest(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}
