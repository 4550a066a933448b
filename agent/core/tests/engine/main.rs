//! The engine, told stories.

mod bounds;
mod causes;
mod contradictions;
mod events;
mod frozen;
mod isolation;
mod late_lists;
mod late_watch;
mod lateness;
mod leak_causes;
mod leak_histories;
mod leaks;
mod lingering;
mod lives;
mod losses;
mod lost_order;
mod main_process;
mod namespaces;
mod node;
mod odd_lives;
mod orphans;
mod outages;
mod phases;
mod polling;
mod processes;
#[path = "../random/mod.rs"]
mod random;
mod static_pods;
mod stop_reasons;
mod stops;
mod together;
mod traffic;
mod world;
