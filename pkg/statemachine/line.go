package statemachine

// OrderMode says what an accepted command does to the jobs of its line that wait before it.
type OrderMode string

// The modes.
const (
	OrderFIFO   OrderMode = "fifo"   // it waits for them
	OrderNewest OrderMode = "newest" // it cancels those whose mode is newest too
	OrderReject OrderMode = "reject" // it is refused while the line has a job
)

// Order is what a job was accepted with about its line: the jobs of one tenant and order key. They
// begin one after the other. Without a key a job has no line.
type Order struct {
	// Key is compared byte by byte.
	Key string `column:"order_key"`
	// Kind is empty for a key that a client or a protocol chose, and [OrderOfSchedule] for the id of a schedule.
	Kind string    `column:"order_kind"`
	Mode OrderMode `column:"order_mode"`
	// Blocks says that the job stops its line if it fails, until it is rerun or released.
	Blocks bool `column:"order_blocks"`
	// CancelsRunning says that the job, whose mode is newest, also cancels one that has begun.
	CancelsRunning bool `column:"order_cancels_running"`
}

// OrderOfSchedule is the [Order.Kind] of the jobs of a schedule that do not overlap.
const OrderOfSchedule = "schedule"

// Place is a job's place in its line. It never changes.
type Place struct {
	Line string `json:"line"` // the line's id, empty if the job has no line
	// Epoch distinguishes the lines that one key had: a line is removed with its last place.
	Epoch string `json:"epoch"`
	Seq   int64  `json:"seq"`
	// Took is the failed job whose place this job, its rerun, took.
	Took string `json:"took,omitempty"`
}

// Standing says what the place that a job names means to the places behind it.
type Standing uint8

// The standings.
const (
	// PlaceGone: the place does not count, and never will again.
	PlaceGone Standing = iota
	// PlaceTurn: once the place is the first, it is the job's turn to begin.
	PlaceTurn
	// PlaceHeld: the job has begun, or waits for its date or an operator.
	PlaceHeld
	// PlaceBlocks: the job has failed, and the line stands until it is rerun or released.
	PlaceBlocks
)

// Waits reports whether the job is live and has not begun.
func (j *Job) Waits() bool { return !j.begun() && (j.State == JobQueued || j.State == JobPaused) }

// AwaitsTurn reports whether the job waits for its line and for nothing else.
func (j *Job) AwaitsTurn() bool { return !j.begun() && j.State == JobQueued && !j.Parked }

// Standing returns the standing of the place that the job names.
func (j *Job) Standing() Standing {
	switch {
	case j.AwaitsTurn():
		return PlaceTurn
	case !j.State.Terminal():
		return PlaceHeld
	case j.State == JobFailedFinal && j.Order.Blocks && j.ErrorCode != ErrorExpired:
		return PlaceBlocks
	case j.Place.Took != "" && (j.State == JobCancelled || j.ErrorCode == ErrorExpired):
		return PlaceBlocks // The failure that this rerun was to repair is left.
	}
	return PlaceGone
}

// decide begins a job whose turn it is.
func (e Turn) decide(c *change) {
	job := &c.agg.Job
	switch {
	case !job.AwaitsTurn() || job.Place.Epoch != e.Epoch || job.Place.Seq != e.Seq:
		c.duplicate("the job does not wait for its turn at this place")
	case c.expireIfDue():
	default:
		c.begin(c.active(), e.Cause)
	}
}
