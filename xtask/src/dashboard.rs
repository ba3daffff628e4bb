//! Where a step works: it runs commands under the eyes of whoever looks at the screen.

use std::time::Duration;

use crate::count;
use crate::run::{Ran, Task, last_line};
use crate::screen::Screen;
use crate::step::Outcome;
use crate::workplace::Workplace;

/// The place of one step.
pub(crate) struct Dashboard<'a> {
    pub(crate) place: &'a Workplace,
    pub(crate) screen: &'a Screen,
    name: &'static str,
    /// The processor time of what it ran.
    pub(crate) cpu: Duration,
    /// What commands say in a test, where none is run.
    #[cfg(test)]
    answer: Option<Answer<'a>>,
}

/// What a command of these words says.
#[cfg(test)]
type Answer<'a> = Box<dyn FnMut(&str) -> Ran + 'a>;

impl<'a> Dashboard<'a> {
    pub(crate) fn new(name: &'static str, place: &'a Workplace, screen: &'a Screen) -> Self {
        Self {
            place,
            screen,
            name,
            cpu: Duration::ZERO,
            #[cfg(test)]
            answer: None,
        }
    }

    /// Runs the command a step is about.
    pub(crate) fn run(&mut self, task: &Task) -> Ran {
        self.show(task, &task.to_string())
    }

    /// Runs a command that only serves the step: looking for a tool, getting it.
    pub(crate) fn run_aside(&mut self, task: &Task) -> Ran {
        self.show(task, "")
    }

    fn show(&mut self, task: &Task, what: &str) -> Ran {
        #[cfg(test)]
        if let Some(answer) = &mut self.answer {
            return answer(&task.to_string());
        }
        let mut live = self.screen.begin(self.name, what);
        // Kept from call to call: what passing tests print may hide how far they are.
        let mut progress = None;
        let ran = task.run(&mut |elapsed, tail| {
            progress = count::progress(tail).or(progress.take());
            live.show(elapsed, progress.as_deref().unwrap_or_else(|| last_line(tail)));
        });
        self.cpu = self.cpu.saturating_add(ran.cpu);
        ran
    }

    /// Runs a command that must succeed: what it printed, or a check that does not hold.
    pub(crate) fn succeed(&mut self, task: &Task) -> Result<String, Outcome> {
        let ran = self.run(task);
        if ran.succeeded() { Ok(ran.output) } else { Err(broken(task, &ran)) }
    }

    /// Runs a command that is a check: it holds where the command succeeds. `note` is what there is to say of it then.
    pub(crate) fn check(
        &mut self,
        task: &Task,
        note: impl Into<String>,
    ) -> Result<Outcome, Outcome> {
        self.succeed(task).map(|_| Outcome::Holds(note.into()))
    }

    /// Whether a command that only serves the step succeeds.
    pub(crate) fn works(&mut self, task: &Task) -> bool {
        self.run_aside(task).succeeded()
    }
}

/// A check that does not hold, with the command and all it said.
pub(crate) fn broken(task: &Task, ran: &Ran) -> Outcome {
    Outcome::Broken(told(task, ran, &ran.output))
}

/// What a command said, and how it ended. Messages for programs say nothing to people.
pub(crate) fn told(task: &Task, ran: &Ran, output: &str) -> String {
    let lines: Vec<&str> = output.lines().filter(|line| !line.starts_with("{\"reason\"")).collect();
    format!("{}\n\"{task}\" {}", lines.join("\n").trim_end(), ran.ending)
}

/// What `act` returns where each command is answered by its words and number, and the commands.
#[cfg(test)]
pub(crate) fn asked<T>(
    place: &Workplace,
    answer: impl Fn(&str, usize) -> Ran,
    act: impl FnOnce(&mut Dashboard<'_>) -> T,
) -> (T, Vec<String>) {
    let screen = Screen::stdout();
    let mut commands = Vec::new();
    let mut dashboard = Dashboard::new("test", place, &screen);
    dashboard.answer = Some(Box::new(|words| {
        commands.push(words.to_owned());
        answer(words, commands.len())
    }));
    let result = act(&mut dashboard);
    drop(dashboard);
    (result, commands)
}
