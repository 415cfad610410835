//! The rules one by one, and lives of leaders, clients and clients that fall back, on virtual time.

mod clients;
mod clusters;
mod keeper;
mod lives;
mod patience;
mod world;
