//! Three voters: elections, lost quorums, snapshots, tenures.
