//! What `holdfast top` shows, and what keys do to it.

use holdfast::{Busiest, BusyOrder, ClusterStatus, HistoryEntry, LockInfo};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Something that the screen has to take in.
pub(super) enum Input {
    /// Time has passed: what is shown is read anew.
    Tick,
    Key(KeyEvent),
    Answer(Answer),
}

/// What the screen wants of the store, or of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// The busiest locks, and how the cluster is.
    Locks { prefix: String, order: BusyOrder },
    /// One lock, with its queue and its past.
    Lock { name: String },
    /// Takes a lock away from all who hold it.
    Force { name: String, reason: String },
    /// Grants nothing of it any more.
    Freeze { name: String, message: String },
    /// Grants again.
    Thaw { name: String },
    /// The end of the program.
    Leave,
}

/// What the store said.
pub(super) enum Answer {
    Locks(Result<(Busiest, Option<ClusterStatus>), String>),
    Lock(Result<Box<LockPage>, String>),
    /// What became of an act.
    Done(Result<String, String>),
}

/// One lock.
pub(super) struct LockPage {
    pub(super) name: String,
    /// `None`: nobody has it, nobody waits, and no freeze lies over it.
    pub(super) lock: Option<LockInfo>,
    /// Oldest first; or why there is none.
    pub(super) past: Result<Vec<HistoryEntry>, String>,
}

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Force,
    Freeze,
    Thaw,
}

/// What is typed, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// The prefix of the locks that are shown.
    Prefix(String),
    /// The reason of an act, which `Enter` does.
    Sure { act: Act, name: String, reason: String },
}

/// The screen.
pub(super) struct App {
    pub(super) prefix: String,
    pub(super) order: BusyOrder,
    pub(super) found: Option<Busiest>,
    pub(super) cluster: Option<ClusterStatus>,
    /// The row that is chosen, by the lock's name: rows change places.
    pub(super) chosen: Option<String>,
    /// The page of a lock, while one is shown.
    pub(super) page: Option<(String, Option<Box<LockPage>>)>,
    pub(super) prompt: Option<Prompt>,
    /// The last thing that went wrong, until something goes right.
    pub(super) trouble: Option<String>,
    /// What became of the last act.
    pub(super) news: Option<String>,
    pub(super) shows_help: bool,
    /// Answers that are under way.
    asked: u32,
}

impl App {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            order: BusyOrder::Hottest,
            found: None,
            cluster: None,
            chosen: None,
            page: None,
            prompt: None,
            trouble: None,
            news: None,
            shows_help: false,
            asked: 0,
        }
    }

    /// Takes something in; what it returns is to be done.
    pub(super) fn take(&mut self, input: Input) -> Vec<Ask> {
        match input {
            // A store that answers slowly is not asked more often than it answers.
            Input::Tick if self.asked > 0 => Vec::new(),
            Input::Tick => self.look(),
            Input::Answer(answer) => self.hear(answer),
            Input::Key(key) if key.kind == KeyEventKind::Release => Vec::new(),
            Input::Key(key) => {
                let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
                if is_control && key.code == KeyCode::Char('c') {
                    return vec![Ask::Leave];
                }
                match self.prompt.take() {
                    Some(prompt) => self.typed(prompt, key.code),
                    None => self.pressed(key.code),
                }
            }
        }
    }

    /// Reads anew what is shown.
    fn look(&mut self) -> Vec<Ask> {
        let locks = Ask::Locks { prefix: self.prefix.clone(), order: self.order };
        let page = self.page.as_ref().map(|(name, _)| Ask::Lock { name: name.clone() });
        let asks: Vec<Ask> = std::iter::once(locks).chain(page).collect();
        self.asked += u32::try_from(asks.len()).unwrap_or(u32::MAX);
        asks
    }

    fn hear(&mut self, answer: Answer) -> Vec<Ask> {
        match answer {
            Answer::Locks(Ok((found, cluster))) => {
                self.trouble = None;
                self.cluster = cluster;
                self.found = Some(found);
                let is_there = |name: &String| self.names().any(|there| there == name);
                if !self.chosen.as_ref().is_some_and(is_there) {
                    let first = self.names().next().map(str::to_owned);
                    self.chosen = first;
                }
            }
            Answer::Lock(Ok(page)) => {
                if let Some((name, shown)) = &mut self.page
                    && *name == page.name
                {
                    *shown = Some(page);
                }
            }
            Answer::Locks(Err(why)) | Answer::Lock(Err(why)) => self.trouble = Some(why),
            Answer::Done(done) => {
                match done {
                    Ok(news) => self.news = Some(news),
                    Err(why) => self.trouble = Some(why),
                }
                return self.look();
            }
        }
        self.asked = self.asked.saturating_sub(1);
        Vec::new()
    }

    /// The locks that are shown, in their order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let locks = self.found.iter().flat_map(|found| &found.locks);
        locks.map(|busy| busy.lock.name.as_str())
    }

    /// The row that is chosen.
    pub(super) fn chosen_row(&self) -> Option<usize> {
        self.names().position(|name| self.chosen.as_deref() == Some(name))
    }

    fn pressed(&mut self, key: KeyCode) -> Vec<Ask> {
        self.news = None;
        if std::mem::take(&mut self.shows_help) {
            return Vec::new();
        }
        match key {
            KeyCode::Char('q') => return vec![Ask::Leave],
            KeyCode::Esc => self.page = None,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('/') => self.prompt = Some(Prompt::Prefix(self.prefix.clone())),
            KeyCode::Char('h') => return self.sort(BusyOrder::Hottest),
            KeyCode::Char('w') => return self.sort(BusyOrder::LongestQueue),
            KeyCode::Char('l') => return self.sort(BusyOrder::LongestHeld),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(10),
            KeyCode::PageUp => self.step(-10),
            KeyCode::Enter if self.page.is_none() => {
                self.page = self.chosen.clone().map(|name| (name, None));
                return self.look();
            }
            KeyCode::Char('f') => self.ask_for(Act::Force),
            KeyCode::Char('z') => self.ask_for(Act::Freeze),
            KeyCode::Char('t') => self.ask_for(Act::Thaw),
            _ => {}
        }
        Vec::new()
    }

    fn sort(&mut self, order: BusyOrder) -> Vec<Ask> {
        self.page = None;
        self.order = order;
        self.look()
    }

    fn step(&mut self, rows: isize) {
        let names: Vec<&str> = self.names().collect();
        let row = self.chosen_row().unwrap_or(0).saturating_add_signed(rows);
        self.chosen = names.get(row).or(names.last()).map(|name| (*name).to_owned());
    }

    /// Asks whether it is meant. The lock is the one that is shown, or else the one that is chosen.
    fn ask_for(&mut self, act: Act) {
        let shown = self.page.as_ref().map(|(name, _)| name);
        let name = shown.or(self.chosen.as_ref()).cloned();
        let reason = String::new();
        self.prompt = name.map(|name| Prompt::Sure { act, name, reason });
    }

    /// A key while something is typed.
    fn typed(&mut self, mut prompt: Prompt, key: KeyCode) -> Vec<Ask> {
        let text = match &mut prompt {
            Prompt::Prefix(text) | Prompt::Sure { reason: text, .. } => text,
        };
        match key {
            KeyCode::Esc => return Vec::new(),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(letter) => text.push(letter),
            KeyCode::Enter => return self.entered(prompt),
            _ => {}
        }
        self.prompt = Some(prompt);
        Vec::new()
    }

    fn entered(&mut self, prompt: Prompt) -> Vec<Ask> {
        match prompt {
            Prompt::Prefix(prefix) => {
                self.prefix = prefix;
                self.found = None;
                self.look()
            }
            // What ends somebody's hold has a reason, which its holder is told.
            Prompt::Sure { act: Act::Force, reason, .. } if reason.trim().is_empty() => {
                self.news = Some("nothing was done: a forced release needs a reason".to_owned());
                Vec::new()
            }
            Prompt::Sure { act, name, reason: text } => vec![match act {
                Act::Force => Ask::Force { name, reason: text },
                Act::Freeze => Ask::Freeze { name, message: text },
                Act::Thaw => Ask::Thaw { name },
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(app: &mut App, key: KeyCode) -> Vec<Ask> {
        app.take(Input::Key(KeyEvent::new(key, KeyModifiers::NONE)))
    }

    fn type_in(app: &mut App, text: &str) {
        text.chars().for_each(|letter| drop(press(app, KeyCode::Char(letter))));
    }

    /// A screen that chose a lock.
    fn chosen(name: &str) -> App {
        App { chosen: Some(name.to_owned()), ..App::new("") }
    }

    #[test]
    fn a_forced_release_is_asked_about_and_needs_a_reason() {
        let mut app = chosen("jobs/nightly");
        assert_eq!(press(&mut app, KeyCode::Char('f')), []);
        assert!(app.prompt.is_some());
        assert_eq!(press(&mut app, KeyCode::Enter), [], "without a reason");
        assert!(app.news.is_some() && app.prompt.is_none());

        press(&mut app, KeyCode::Char('f'));
        type_in(&mut app, "stuckk");
        press(&mut app, KeyCode::Backspace);
        let (name, reason) = ("jobs/nightly".to_owned(), "stuck".to_owned());
        assert_eq!(press(&mut app, KeyCode::Enter), [Ask::Force { name, reason }]);

        press(&mut app, KeyCode::Char('z'));
        assert_eq!(press(&mut app, KeyCode::Esc), [], "Esc does nothing");
        assert!(app.prompt.is_none());
    }

    #[test]
    fn letters_are_typed_while_something_is_asked_and_keys_otherwise() {
        let mut app = App::new("");
        press(&mut app, KeyCode::Char('/'));
        type_in(&mut app, "queue/");
        assert_eq!(app.order, BusyOrder::Hottest, "w was a letter");
        let asked = press(&mut app, KeyCode::Enter);
        let prefix = "queue/".to_owned();
        assert_eq!(asked, [Ask::Locks { prefix, order: BusyOrder::Hottest }]);
        press(&mut app, KeyCode::Char('w'));
        assert_eq!(app.order, BusyOrder::LongestQueue);
        assert_eq!(press(&mut app, KeyCode::Char('q')), [Ask::Leave]);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        press(&mut app, KeyCode::Char('/'));
        assert_eq!(app.take(Input::Key(control)), [Ask::Leave], "also while something is typed");
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_asked_again_and_again() {
        let mut app = App::new("");
        assert_eq!(app.take(Input::Tick).len(), 1);
        assert_eq!(app.take(Input::Tick), []);
        app.take(Input::Answer(Answer::Locks(Err("no server".to_owned()))));
        assert_eq!(app.trouble.as_deref(), Some("no server"));
        assert_eq!(app.take(Input::Tick).len(), 1);
        app.take(Input::Answer(Answer::Locks(Ok((Busiest::default(), None)))));
        assert_eq!(app.trouble, None);
    }

    #[test]
    fn an_act_that_was_refused_is_told_and_what_is_shown_is_read_again() {
        let mut app = chosen("a");
        let asked = app.take(Input::Answer(Answer::Done(Err("not allowed: force".to_owned()))));
        assert_eq!(app.trouble.as_deref(), Some("not allowed: force"));
        assert_eq!(asked.len(), 1);
    }
}
