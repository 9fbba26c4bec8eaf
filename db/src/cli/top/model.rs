//! What `sandstorm top` shows: the rows, their order, the selected one and its past.

use std::collections::{HashMap, VecDeque};

use sandstorm_client::control::{KillReport, TopReport};

use super::keys::TerminalKey;
use super::rows::{RowKey, TopRow, TopView, is_match, sort};

/// Points of a graph: two minutes, at a report a second. With 1,024 rows that is 3 MB.
const GRAPH_POINTS: usize = 120;
/// Rows of a page up or down.
const PAGE_ROWS: isize = 20;

/// What a key asks for beyond a change of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOutcome {
    /// Nothing.
    Stay,
    /// Other rows, now.
    Refresh,
    /// The end.
    Quit,
}

/// The state of the screen.
pub(super) struct TopModel {
    pub(super) view: TopView,
    /// Number of the column that rows are sorted by.
    pub(super) order: usize,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) editing: bool,
    pub(super) paused: bool,
    /// The rows that pass the filter, in order.
    pub(super) rows: Vec<TopRow>,
    pub(super) selected: usize,
    /// Whether the page of the selected row is shown.
    pub(super) page: bool,
    /// The latest kills of what the page is about.
    pub(super) kills: Vec<KillReport>,
    /// Why there is no answer; empty: there is one.
    pub(super) trouble: String,
    pub(super) now: Option<TopReport>,
    before: Option<TopReport>,
    graphs: HashMap<RowKey, VecDeque<[f64; 3]>>,
}

impl TopModel {
    pub(super) fn new(view: TopView, order: usize, filter: String) -> TopModel {
        TopModel {
            view,
            order,
            reversed: false,
            filter,
            editing: false,
            paused: false,
            rows: Vec::new(),
            selected: 0,
            page: false,
            kills: Vec::new(),
            trouble: String::new(),
            now: None,
            before: None,
            graphs: HashMap::new(),
        }
    }

    /// The selected row.
    pub(super) fn selected_row(&self) -> Option<&TopRow> {
        self.rows.get(self.selected)
    }

    /// The past of a row, oldest first.
    pub(super) fn graph(&self, key: &RowKey) -> Option<&VecDeque<[f64; 3]>> {
        self.graphs.get(key)
    }

    /// Tenant and, if it is about one, extension whose kills the page shows.
    pub(super) fn kills_wanted(&self) -> Option<(String, Option<String>)> {
        let (tenant, name, _) = &self.selected_row().filter(|_| self.page)?.key;
        let extension = (self.view == TopView::Extensions).then(|| name.clone());
        Some((tenant.clone(), extension))
    }

    /// Takes a report in. One of other rows than are shown now is too late.
    pub(super) fn take(&mut self, view: TopView, report: TopReport, kills: Vec<KillReport>) {
        if view != self.view {
            return;
        }
        self.trouble.clear();
        self.kills = kills;
        self.before = self.now.replace(report);
        let rows = self.all_rows();
        self.graphs.retain(|key, _| rows.iter().any(|row| row.key == *key));
        // Rates since the start say nothing of now.
        if self.before.is_some() {
            for row in &rows {
                let points = self.graphs.entry(row.key.clone()).or_default();
                if points.len() >= GRAPH_POINTS {
                    points.pop_front();
                }
                points.push_back(row.graphs);
            }
        }
        self.show(rows);
    }

    /// Notes that the server does not answer. What it said before stays.
    pub(super) fn fail(&mut self, reason: String) {
        self.trouble = reason;
    }

    fn all_rows(&self) -> Vec<TopRow> {
        self.now.as_ref().map_or_else(Vec::new, |now| self.view.rows(self.before.as_ref(), now))
    }

    /// Filters and sorts; the selected row stays selected where it is still there.
    fn show(&mut self, mut rows: Vec<TopRow>) {
        let selected = self.selected_row().map(|row| row.key.clone());
        rows.retain(|row| is_match(row, &self.filter));
        sort(&mut rows, self.order, self.reversed);
        self.rows = rows;
        let found = selected.and_then(|key| self.rows.iter().position(|row| row.key == key));
        match found {
            Some(at) => self.selected = at,
            // What the page was about is gone.
            None => self.page = false,
        }
        self.selected = self.selected.min(self.rows.len().saturating_sub(1));
    }

    fn arrange(&mut self) {
        let rows = self.all_rows();
        self.show(rows);
    }

    fn set_view(&mut self, view: TopView) -> KeyOutcome {
        if view == self.view {
            return KeyOutcome::Stay;
        }
        let TopModel { filter, paused, .. } =
            std::mem::replace(self, TopModel::new(view, view.first_order(), String::new()));
        self.filter = filter;
        self.paused = paused;
        KeyOutcome::Refresh
    }

    fn step(&mut self, rows: isize) {
        let last = self.rows.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
        self.kills.clear();
    }

    /// Obeys a key.
    pub(super) fn key(&mut self, key: TerminalKey) -> KeyOutcome {
        if key == TerminalKey::Interrupt {
            return KeyOutcome::Quit;
        }
        if self.editing {
            self.edit(key);
            return KeyOutcome::Stay;
        }
        let columns = self.view.columns().len();
        match key {
            TerminalKey::Character('q') => return KeyOutcome::Quit,
            TerminalKey::Character('1') => return self.set_view(TopView::Tenants),
            TerminalKey::Character('2') => return self.set_view(TopView::Extensions),
            TerminalKey::Character('3') => return self.set_view(TopView::Tables),
            TerminalKey::Tab => {
                return self.set_view(match self.view {
                    TopView::Tenants => TopView::Extensions,
                    TopView::Extensions => TopView::Tables,
                    TopView::Tables => TopView::Tenants,
                });
            }
            TerminalKey::Character('/') => self.editing = true,
            TerminalKey::Character('p') => self.paused = !self.paused,
            TerminalKey::Character('r') => self.reversed = !self.reversed,
            TerminalKey::Left | TerminalKey::Character('<') => self.order = (self.order + columns - 1) % columns,
            TerminalKey::Right | TerminalKey::Character('>') => self.order = (self.order + 1) % columns,
            TerminalKey::Up | TerminalKey::Character('k') => self.step(-1),
            TerminalKey::Down | TerminalKey::Character('j') => self.step(1),
            TerminalKey::PageUp => self.step(-PAGE_ROWS),
            TerminalKey::PageDown => self.step(PAGE_ROWS),
            TerminalKey::Home => self.step(isize::MIN),
            TerminalKey::End => self.step(isize::MAX),
            TerminalKey::Enter if !self.page && !self.rows.is_empty() => {
                self.page = true;
                return KeyOutcome::Refresh;
            }
            TerminalKey::Escape if self.page => self.page = false,
            TerminalKey::Escape => self.filter.clear(),
            _ => return KeyOutcome::Stay,
        }
        if !self.page {
            self.arrange();
        }
        KeyOutcome::Stay
    }

    fn edit(&mut self, key: TerminalKey) {
        match key {
            TerminalKey::Enter => self.editing = false,
            TerminalKey::Escape => {
                self.editing = false;
                self.filter.clear();
            }
            TerminalKey::Backspace => {
                self.filter.pop();
            }
            TerminalKey::Character(c) => self.filter.push(c),
            _ => {}
        }
        self.arrange();
    }
}
