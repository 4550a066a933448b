//! The engine, told stories.

mod bounds;
mod causes;
mod contradictions;
mod isolation;
mod late_lists;
mod late_watch;
mod lateness;
mod leak_doubts;
mod leak_histories;
mod leaks;
mod lingering;
mod lives;
mod losses;
mod lost_order;
mod namespaces;
mod node;
mod outages;
mod phases;
mod polling;
mod processes;
#[path = "../random/mod.rs"]
mod random;
mod static_pods;
mod stops;
mod together;
mod traffic;
mod world;
