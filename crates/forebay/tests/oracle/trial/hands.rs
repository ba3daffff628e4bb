//! Threads that do one thing at a time, in an order that the program says.
//!
//! What a pool keeps for each thread comes to be used by blocks that go from one to another, and
//! still the same program does the same, run after run.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// One thread that waits for jobs.
struct Hand {
    jobs: Sender<Job>,
    done: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Hand {
    fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (say, done) = channel();
        let thread = thread::spawn(move || {
            for job in todo {
                job();
                if say.send(()).is_err() {
                    break;
                }
            }
        });
        Self { jobs, done, thread }
    }
}

/// The thread of the trial itself, some that stay, and any number that come and go.
pub(crate) struct Hands {
    staying: Vec<Hand>,
}

impl Hands {
    /// So many that stay.
    pub(crate) fn new(staying: usize) -> Self {
        Self { staying: (0..staying).map(|_| Hand::new()).collect() }
    }

    /// Does `act` on the thread with that number, counted round and round: 0 is the thread of the
    /// trial, then come those that stay, and the last is a new one that ends at once.
    pub(crate) fn on<T, F>(&self, number: u8, act: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let number = usize::from(number) % (self.staying.len() + 2);
        if number == 0 {
            return act();
        }
        let Some(hand) = self.staying.get(number - 1) else {
            return thread::spawn(act).join().expect("a call of the pool panicked");
        };
        let (say, result) = channel();
        let job = move || {
            // The trial waits for it below; were it gone, nobody would want the result.
            let _ = say.send(act());
        };
        hand.jobs.send(Box::new(job)).expect("a thread that ended before its time");
        let result = result.recv().expect("a call of the pool panicked");
        hand.done.recv().expect("a call of the pool panicked");
        result
    }

    /// Ends those that stay, and waits for their ends.
    pub(crate) fn end(self) {
        for Hand { jobs, thread, .. } in self.staying {
            drop(jobs);
            thread.join().expect("a call of the pool panicked");
        }
    }
}
