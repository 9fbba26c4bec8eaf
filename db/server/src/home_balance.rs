//! Decides which tenants get another home worker, by what they took of the workers' time lately. It has no clock, no
//! threads and no counters: [`super::home_balancer`] measures, and makes the moves.
//!
//! A worker's load is the time that its tenants take, wherever they took it: idle workers take work over from busy
//! ones, and what was taken over is still the load of the home. A move is made if it makes the larger load of both
//! workers smaller by [`HOME_LEAST_GAIN`], and would have in each of the last [`HOME_WINDOWS`] windows. So
//!
//! - two busy tenants at one worker are separated, and a burst of one window moves nothing;
//! - the largest load never grows by a move, and with equal loads nothing is moved;
//! - a tenant that one worker cannot serve alone stays where it is: at any other worker it would be the same;
//! - a tenant that was moved stays for [`HOME_STAY_WINDOWS`] windows, and there are at most [`HOME_MOVES_PER_WINDOW`]
//!   moves after a window.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::limits::homes::{
    HOME_BUSY_LOAD, HOME_LEAST_GAIN, HOME_MOVE_COST, HOME_MOVES_PER_WINDOW, HOME_SMALLEST_LOAD, HOME_STAY_WINDOWS,
    HOME_WINDOWS,
};

/// What a tenant took of the workers' time in one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HomeLoad {
    /// Its id.
    pub tenant: u32,
    /// Its home worker.
    pub home: u32,
    /// Whether it keeps its home whatever the load.
    pub is_fixed: bool,
    /// The time that it took of all workers: 1.0 is all of one worker's.
    pub load: f64,
}

/// A tenant that gets another home.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HomeMove {
    /// The tenant.
    pub tenant: u32,
    /// The worker that was its home.
    pub from: u32,
    /// The worker that is to be.
    pub to: u32,
    /// What the tenant took of the workers' time in the last window.
    pub load: f64,
    /// What all tenants of the old home took then, this one among them.
    pub from_load: f64,
    /// What those of the new home took.
    pub to_load: f64,
}

/// See the head of this file.
#[derive(Debug)]
pub struct HomeBalance {
    workers: usize,
    /// The loads by tenant of the last windows, the newest last.
    windows: VecDeque<HashMap<u32, f64>>,
    /// The tenants that were moved lately, and the number of the window after which they were.
    moved: HashMap<u32, u64>,
    /// Windows that have ended.
    ended: u64,
}

impl HomeBalance {
    /// Of a server with so many workers.
    pub fn new(workers: usize) -> HomeBalance {
        HomeBalance { workers, windows: VecDeque::new(), moved: HashMap::new(), ended: 0 }
    }

    /// Takes the loads of a window that has ended. Returns the moves that are to be made now.
    pub fn end_window(&mut self, tenants: &[HomeLoad]) -> Vec<HomeMove> {
        self.ended += 1;
        let (ended, stay) = (self.ended, HOME_STAY_WINDOWS);
        self.moved.retain(|_, at| ended - *at < stay);
        if self.windows.len() >= HOME_WINDOWS {
            self.windows.pop_front();
        }
        self.windows.push_back(tenants.iter().map(|one| (one.tenant, one.load)).collect());
        if self.windows.len() < HOME_WINDOWS {
            return Vec::new();
        }
        let mut tenants = tenants.to_vec();
        let mut moves = Vec::new();
        while moves.len() < HOME_MOVES_PER_WINDOW
            && let Some(next) = self.best_move(&tenants)
        {
            self.moved.insert(next.tenant, ended);
            tenants.iter_mut().filter(|one| one.tenant == next.tenant).for_each(|one| one.home = next.to);
            moves.push(next);
        }
        moves
    }

    /// Forgets the windows: none was measured for a while.
    pub fn interrupt(&mut self) {
        self.windows.clear();
    }

    /// The move that is worth most at the busiest worker that has one.
    fn best_move(&self, tenants: &[HomeLoad]) -> Option<HomeMove> {
        let by_window: Vec<Vec<f64>> = self.windows.iter().map(|loads| self.worker_loads(tenants, loads)).collect();
        let newest = by_window.last()?;
        let mut busiest: Vec<usize> = (0..self.workers).filter(|worker| newest[*worker] >= HOME_BUSY_LOAD).collect();
        busiest.sort_by(|one, other| newest[*other].total_cmp(&newest[*one]));
        busiest.into_iter().find_map(|from| self.best_move_from(from, tenants, &by_window))
    }

    fn best_move_from(&self, from: usize, tenants: &[HomeLoad], by_window: &[Vec<f64>]) -> Option<HomeMove> {
        let newest = by_window.last()?;
        let is_movable = |one: &&HomeLoad| {
            one.home as usize == from
                && !one.is_fixed
                && one.load >= HOME_SMALLEST_LOAD
                && !self.moved.contains_key(&one.tenant)
        };
        let mut best: Option<(f64, HomeMove)> = None;
        for one in tenants.iter().filter(is_movable) {
            for to in (0..self.workers).filter(|to| *to != from) {
                let gains = self.windows.iter().zip(by_window).map(|(loads, workers)| {
                    let load = loads.get(&one.tenant).copied().unwrap_or(0.0);
                    gain(workers[from], workers[to], load)
                });
                let gain = gains.fold(f64::INFINITY, f64::min);
                // A larger tenant has more requests that change their worker.
                let worth = gain - HOME_MOVE_COST * one.load;
                if gain >= HOME_LEAST_GAIN && best.is_none_or(|(other, _)| worth > other) {
                    let (from_load, to_load) = (newest[from], newest[to]);
                    let HomeLoad { tenant, load, .. } = *one;
                    best =
                        Some((worth, HomeMove { tenant, from: from as u32, to: to as u32, load, from_load, to_load }));
                }
            }
        }
        best.map(|(_, found)| found)
    }

    /// What the tenants of each worker took in a window.
    fn worker_loads(&self, tenants: &[HomeLoad], loads: &HashMap<u32, f64>) -> Vec<f64> {
        let mut workers = vec![0.0; self.workers];
        for one in tenants {
            if let Some(worker) = workers.get_mut(one.home as usize) {
                *worker += loads.get(&one.tenant).copied().unwrap_or(0.0);
            }
        }
        workers
    }
}

/// By how much the larger load of two workers becomes smaller if so much moves from the first to the second.
fn gain(from: f64, to: f64, load: f64) -> f64 {
    from.max(to) - (from - load).max(to + load)
}

#[cfg(test)]
mod tests;
