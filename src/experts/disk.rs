//! Reads parts of experts from the model's files: by several threads, past the page cache where the system allows it, with a
//! bounded queue and a deadline on every wait.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ExpertError;
use crate::gguf::{ModelFiles, SECTOR_BYTES, SectorBuffer, open_unbuffered, read_some_at};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskOptions {
    /// Reads at the same time. NVMe drives need many to reach their rate.
    pub in_flight: usize,
    /// The longest wait for one read.
    pub deadline: Duration,
}

impl Default for DiskOptions {
    /// A drive that has not answered for 20 s has failed, or is a network share that went away.
    fn default() -> DiskOptions {
        DiskOptions { in_flight: 32, deadline: Duration::from_secs(20) }
    }
}

/// A stretch of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    pub shard: usize,
    pub offset_bytes: u64,
    pub len_bytes: usize,
}

#[derive(Debug)]
struct Job {
    tag: u64,
    epoch: u64,
    stretch: Stretch,
    /// Holds the stretch with the sectors around it.
    buffer: SectorBuffer,
}

#[derive(Debug)]
struct Outcome {
    job: Job,
    /// First byte of the stretch in the buffer.
    result: io::Result<usize>,
}

/// A shard as it is read.
#[derive(Debug)]
struct Shard {
    /// Opened past the page cache; `None` where that is refused.
    direct: Option<File>,
}

#[derive(Debug)]
pub struct DiskReader {
    jobs: Option<SyncSender<Job>>,
    outcomes: Receiver<Outcome>,
    workers: Vec<JoinHandle<()>>,
    free: Vec<SectorBuffer>,
    in_flight: usize,
    epoch: u64,
    options: DiskOptions,
}

/// A stretch that has arrived.
#[derive(Debug)]
pub struct Arrived {
    pub tag: u64,
    pub len_bytes: usize,
    buffer: SectorBuffer,
    at: usize,
}

impl Arrived {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.get()[self.at..self.at + self.len_bytes]
    }
}

impl DiskReader {
    /// Starts the readers. The second value says which files are read through the page cache, and why.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn open(
        files: &Arc<ModelFiles>,
        largest_bytes: usize,
        options: DiskOptions,
    ) -> Result<(DiskReader, Vec<String>), ExpertError> {
        let mut notices = vec![];
        let mut shards = vec![];
        for (i, file) in files.files().iter().enumerate() {
            // Models in memory are read where they are.
            let direct = match files.file_handle(i).map(|_| open_unbuffered(&file.path)) {
                None => None,
                Some(Ok(file)) => Some(file),
                Some(Err(e)) => {
                    notices.push(format!("'{}' is read through the page cache: {e}", file.path.display()));
                    None
                }
            };
            shards.push(Shard { direct });
        }
        let shards = Arc::new(shards);
        let count = options.in_flight.max(1);
        let (jobs, queue) = sync_channel::<Job>(count);
        let (done, outcomes) = sync_channel::<Outcome>(count);
        let queue = Arc::new(Mutex::new(queue));
        let mut workers = vec![];
        for i in 0..count {
            let (files, shards, queue, done) = (Arc::clone(files), Arc::clone(&shards), Arc::clone(&queue), done.clone());
            let builder = std::thread::Builder::new().name(format!("strata-disk-{i}")).stack_size(128 << 10);
            let work = builder.spawn(move || work(&files, &shards, &queue, &done));
            workers.push(work.map_err(|e| ExpertError::Threads { reason: e.to_string() })?);
        }
        let free = (0..count).map(|_| SectorBuffer::new(largest_bytes + 2 * SECTOR_BYTES)).collect();
        let reader = DiskReader { jobs: Some(jobs), outcomes, workers, free, in_flight: 0, epoch: 0, options };
        Ok((reader, notices))
    }

    /// Bytes of the buffers.
    pub fn buffer_bytes(&self) -> u64 {
        self.free.iter().map(SectorBuffer::taken_bytes).sum()
    }

    /// Begins a read, unless as many as may be are under way.
    pub fn submit(&mut self, tag: u64, stretch: Stretch) -> bool {
        self.reclaim();
        let Some(buffer) = self.free.pop() else { return false };
        let job = Job { tag, epoch: self.epoch, stretch, buffer };
        // The queue is as long as there are buffers, so this does not wait.
        match self.jobs.as_ref().map(|jobs| jobs.send(job)) {
            Some(Ok(())) => {
                self.in_flight += 1;
                true
            }
            _ => false,
        }
    }

    /// The next stretch that arrives.
    ///
    /// # Errors
    /// The tag of the stretch, if it is known, and why it could not be read. Whatever else is under way is then forgotten.
    pub fn next(&mut self) -> Result<Arrived, (Option<u64>, io::Error)> {
        let give_up = Instant::now() + self.options.deadline;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let outcome = match self.outcomes.recv_timeout(left) {
                Ok(outcome) => outcome,
                Err(reason) => {
                    self.forget();
                    let text = match reason {
                        RecvTimeoutError::Timeout => format!("no answer for {} s", self.options.deadline.as_secs()),
                        RecvTimeoutError::Disconnected => "the readers have ended".into(),
                    };
                    return Err((None, io::Error::new(io::ErrorKind::TimedOut, text)));
                }
            };
            let Outcome { job, result } = outcome;
            if job.epoch != self.epoch {
                self.free.push(job.buffer);
                continue;
            }
            self.in_flight -= 1;
            match result {
                Ok(at) => return Ok(Arrived { tag: job.tag, len_bytes: job.stretch.len_bytes, buffer: job.buffer, at }),
                Err(error) => {
                    self.free.push(job.buffer);
                    self.forget();
                    return Err((Some(job.tag), error));
                }
            }
        }
    }

    /// Buffers of forgotten reads come back when the system has answered them; where all are out, that is waited for.
    fn reclaim(&mut self) {
        let give_up = Instant::now() + self.options.deadline;
        while self.free.is_empty() && self.in_flight == 0 {
            match self.outcomes.recv_timeout(give_up.saturating_duration_since(Instant::now())) {
                Ok(outcome) => self.free.push(outcome.job.buffer),
                Err(_) => return,
            }
        }
    }

    pub fn give_back(&mut self, arrived: Arrived) {
        self.free.push(arrived.buffer);
    }

    /// Reads that are under way belong to the past: their results are dropped.
    pub fn forget(&mut self) {
        self.epoch += 1;
        self.in_flight = 0;
    }
}

impl Drop for DiskReader {
    fn drop(&mut self) {
        self.jobs = None;
        // A reader that hangs in the system is not waited for; the others end at once.
        let end = Instant::now() + Duration::from_secs(2);
        while self.workers.iter().any(|w| !w.is_finished()) && Instant::now() < end {
            while self.outcomes.try_recv().is_ok() {}
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn work(files: &ModelFiles, shards: &[Shard], queue: &Mutex<Receiver<Job>>, done: &SyncSender<Outcome>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut job) = next else { return };
        let result = match shards.get(job.stretch.shard).and_then(|s| s.direct.as_ref()) {
            Some(file) => read_sectors(file, job.stretch, &mut job.buffer),
            None => read_buffered(files, job.stretch, &mut job.buffer),
        };
        if done.send(Outcome { job, result }).is_err() {
            return;
        }
    }
}

/// Reads the sectors that hold the stretch; the place of its first byte in the buffer.
fn read_sectors(file: &File, stretch: Stretch, buffer: &mut SectorBuffer) -> io::Result<usize> {
    let skip = (stretch.offset_bytes % SECTOR_BYTES as u64) as usize;
    let first = stretch.offset_bytes - skip as u64;
    let wanted = skip + stretch.len_bytes;
    let room = &mut buffer.get_mut()[..wanted.next_multiple_of(SECTOR_BYTES)];
    let mut have = 0;
    // Whole sectors only: the last read of a file may be shorter, and a shorter one elsewhere is continued at a sector.
    while have < wanted {
        let at = have / SECTOR_BYTES * SECTOR_BYTES;
        match read_some_at(file, first + at as u64, &mut room[at..]) {
            Ok(count) if at + count > have => have = at + count,
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(skip)
}

fn read_buffered(files: &ModelFiles, stretch: Stretch, buffer: &mut SectorBuffer) -> io::Result<usize> {
    files.read_shard(stretch.shard, stretch.offset_bytes, &mut buffer.get_mut()[..stretch.len_bytes])?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A GGUF file with one tensor of counted bytes.
    fn model() -> (tempfile::NamedTempFile, Arc<ModelFiles>, Vec<u8>) {
        let data: Vec<u8> = (0..50_000u32 * 4).map(|i| (i % 251) as u8).collect();
        let mut writer = crate::gguf::GgufWriter::new();
        writer.set("general.architecture", "none");
        writer.tensor("t", &[50_000], crate::quant::Format::F32, data.as_slice()).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&writer.to_bytes().unwrap()).unwrap();
        let files = Arc::new(ModelFiles::open(file.path()).unwrap());
        (file, files, data)
    }

    #[test]
    fn stretches_arrive_whole_wherever_they_begin() {
        let (_file, files, data) = model();
        let base = files.tensor("t").unwrap().offset;
        let options = DiskOptions { in_flight: 3, ..DiskOptions::default() };
        let (mut reader, notices) = DiskReader::open(&files, 30_000, options).unwrap();
        // A file system without unbuffered reads is told, and read all the same.
        assert!(notices.iter().all(|line| line.contains("page cache")), "{notices:?}");
        let stretches: Vec<(usize, usize)> =
            [(0, 1), (1, 4096), (4095, 2), (8192, 8192), (199_990, 10), (170_000, 30_000), (5, 29_999)].into();
        let mut next = 0;
        let mut arrived = 0;
        while arrived < stretches.len() {
            while next < stretches.len() {
                let (at, len_bytes) = stretches[next];
                if !reader.submit(next as u64, Stretch { shard: 0, offset_bytes: base + at as u64, len_bytes }) {
                    break;
                }
                next += 1;
            }
            assert!(reader.in_flight <= 3);
            let got = reader.next().unwrap();
            let (at, len) = stretches[got.tag as usize];
            assert_eq!(got.bytes(), &data[at..at + len]);
            reader.give_back(got);
            arrived += 1;
        }
    }

    #[test]
    fn a_short_file_is_an_error_with_its_tag_and_the_reader_goes_on() {
        let (file, files, data) = model();
        let base = files.tensor("t").unwrap().offset;
        let (mut reader, _) = DiskReader::open(&files, 30_000, DiskOptions::default()).unwrap();
        file.as_file().set_len(base + 10_000).unwrap();
        let stretch = |at: u64, len_bytes| Stretch { shard: 0, offset_bytes: base + at, len_bytes };
        assert!(reader.submit(7, stretch(9_000, 2_000)) && reader.submit(8, stretch(0, 100)));
        let mut failed = None;
        for _ in 0..2 {
            match reader.next() {
                Ok(good) => reader.give_back(good),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let (tag, error) = failed.expect("the short one fails");
        assert_eq!((tag, error.kind()), (Some(7), io::ErrorKind::UnexpectedEof));
        assert_eq!(reader.in_flight, 0);
        for _ in 0..40 {
            assert!(reader.submit(9, stretch(100, 5_000)));
            let good = reader.next().unwrap();
            assert_eq!((good.tag, good.bytes()), (9, &data[100..5_100]));
            reader.give_back(good);
        }
    }

    #[test]
    fn a_wait_has_an_end() {
        let (_file, files, _) = model();
        let options = DiskOptions { in_flight: 1, deadline: Duration::from_millis(30) };
        let (mut reader, _) = DiskReader::open(&files, 1000, options).unwrap();
        let (tag, error) = reader.next().unwrap_err();
        assert_eq!((tag, error.kind()), (None, io::ErrorKind::TimedOut));
    }
}
