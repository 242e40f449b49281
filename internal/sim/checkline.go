package sim

import (
	"slices"
	"strconv"
	"strings"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// lineCopy is the checker's copy of the rows of a line.
type lineCopy struct {
	id     string
	exists bool
	epoch  string
	next   int64
	count  int64
	places map[int64]placeCopy
	gone   map[placeName]bool // the places that were seen gone
}

type placeCopy struct {
	job, epoch, took, mode string
	released               bool
}

// placeName names a place over the life of its line.
type placeName struct {
	epoch string
	seq   int64
	job   string
}

// lineOf returns the copy of a line.
func (c *checker) lineOf(id string) *lineCopy {
	ln := c.inLine[id]
	if ln == nil {
		ln = &lineCopy{id: id, places: map[int64]placeCopy{}, gone: map[placeName]bool{}}
		c.inLine[id] = ln
	}
	return ln
}

// lineID returns the line whose partition that is.
func lineID(partition string) (string, bool) { return strings.CutPrefix(partition, "line:") }

// takeLine copies a batch on a line's partition, and checks what holds after it.
func (c *checker) takeLine(ln *lineCopy, writes []write) {
	for i := range writes {
		w := &writes[i]
		_, number, isPlace := strings.Cut(w.op.Key.Row, ":")
		row := w.op.Properties
		switch seq, _ := strconv.ParseInt(number, 10, 64); {
		case isPlace && w.gone():
			if p, was := ln.places[seq]; was && c.standing(seq, &p) != "gone" {
				c.violate("lines", "place %d of job %s was removed, and it is %s", seq, p.job, c.standing(seq, &p))
			}
			delete(ln.places, seq)
		case isPlace:
			ln.places[seq] = placeCopy{
				job: row.Get("job_id").String(), epoch: row.Get("epoch").String(), took: row.Get("took").String(),
				mode: row.Get("order_mode").String(), released: !row.Get("released_at").Time().IsZero(),
			}
		case w.gone():
			ln.exists, ln.count, ln.next = false, 0, 0
		default:
			ln.exists, ln.epoch = true, row.Get("epoch").String()
			ln.count, ln.next = row.Get("count").Int(), row.Get("next").Int()
		}
	}
	if ln.exists != (len(ln.places) > 0) || ln.exists && ln.count != int64(len(ln.places)) {
		c.violate("lines", "L4: line %s has %d places, and counts %d", ln.id, len(ln.places), ln.count)
	}
	for seq, p := range ln.places {
		if seq >= ln.next || p.epoch != ln.epoch {
			c.violate("lines", "L4: line %s of epoch %s, whose next place is %d, has the place %d of epoch %s",
				ln.id, ln.epoch, ln.next, seq, p.epoch)
		}
	}
	c.checkGone(ln)
	for _, j := range c.all() {
		if j.row.Place.Line == ln.id {
			c.checkPlace(j)
		}
	}
}

// checkGone checks that a place that was gone does not count again.
func (c *checker) checkGone(ln *lineCopy) {
	for _, seq := range ln.order() {
		p := ln.places[seq]
		name := placeName{p.epoch, seq, p.job}
		switch gone := c.standing(seq, &p) == "gone"; {
		case gone:
			ln.gone[name] = true
		case ln.gone[name]:
			c.violate("lines", "L7: place %d of job %s in line %s was gone, and counts again", seq, p.job, ln.id)
		}
	}
}

// order returns the seqs of the line's places.
func (ln *lineCopy) order() []int64 {
	seqs := make([]int64, 0, len(ln.places))
	for seq := range ln.places {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	return seqs
}

// standing says what a place means: gone, missing (its job may yet come), waits, held or blocks.
func (c *checker) standing(seq int64, p *placeCopy) string {
	j := c.jobs[p.job]
	switch {
	case p.released:
		return "gone"
	case j == nil || !j.exists && !j.purged && !j.row.Tombstone:
		return "missing"
	case !j.exists:
		if took := c.jobs[p.took]; p.took != "" && took != nil && took.exists {
			return standingOf(&took.row)
		}
		return "gone"
	case j.row.Place.Epoch != p.epoch || j.row.Place.Seq != seq:
		return "gone"
	}
	return standingOf(&j.row)
}

func standingOf(row *audit.JobRow) string {
	expired := row.Code == "expired"
	failed := row.State == "FAILED_FINAL" && row.Blocks && !expired
	switch {
	case failed || row.Place.Took != "" && (row.State == "CANCELLED" || expired):
		return "blocks"
	case row.Terminal():
		return "gone"
	case waitsInLine(row):
		return "waits"
	}
	return "held"
}

// waitsInLine reports whether a job waits for its turn and for nothing else.
func waitsInLine(row *audit.JobRow) bool {
	return row.State == "QUEUED" && !row.Parked && row.Attempts == 0 && row.Place.Line != ""
}

// first returns the first place of the line that is not gone, with its standing; "" if there is none.
func (c *checker) first(ln *lineCopy) (p placeCopy, standing string) {
	for _, seq := range ln.order() {
		p := ln.places[seq]
		if standing := c.standing(seq, &p); standing != "gone" {
			return p, standing
		}
	}
	return placeCopy{}, ""
}

// checkPlace checks that the place of a live job exists.
func (c *checker) checkPlace(j *job) {
	at := j.row.Place
	if p, ok := c.lineOf(at.Line).places[at.Seq]; j.exists && !j.row.Terminal() && (!ok || p.job != j.id || p.epoch != at.Epoch) {
		c.violate("lines", "L3: job %s is %s, and has no place in its line", j.id, j.row.State)
	}
}

// checkInLine checks the change of a job with a place.
func (c *checker) checkInLine(was, j *job) {
	at := j.row.Place
	if at.Line == "" {
		return
	}
	if was.exists && was.row.Place != at {
		c.violate("lines", "job %s went from place %+v to %+v", j.id, was.row.Place, at)
	}
	c.checkPlace(j)
	ln := c.lineOf(at.Line)
	if was.row.Attempts == 0 && j.row.Attempts > 0 {
		for _, other := range c.all() {
			if row := &other.row; other != j && row.Place.Line == at.Line && !row.Terminal() && row.Attempts > 0 {
				c.violate("lines", "L1: jobs %s and %s of one line have begun", other.id, j.id)
			}
		}
		for _, seq := range ln.order() {
			p := ln.places[seq]
			if standing := c.standing(seq, &p); seq < at.Seq && p.epoch == at.Epoch && standing != "gone" {
				c.violate("lines", "L2: job %s began, and job %s before it in its line is %s", j.id, p.job, standing)
			}
		}
	}
	if j.row.Code == "superseded" && was.row.Code != j.row.Code {
		c.checkSuperseded(was, j)
	}
	c.checkGone(ln)
}

// checkSuperseded checks that a newer version of the job was accepted.
func (c *checker) checkSuperseded(was, j *job) {
	at := j.row.Place
	// Explored jobs, and those of schedules, may cancel a running one.
	cancels := c.w.scenario.bare || j.row.Occurrence.ScheduleID != ""
	if j.row.OrderMode != "newest" || was.row.Attempts > 0 && !cancels {
		c.violate("lines", "L8: job %s, whose mode is %s, was superseded after %d attempts", j.id, j.row.OrderMode, was.row.Attempts)
	}
	for _, other := range c.jobs {
		behind := other.row.Place.Line == at.Line && other.row.Place.Epoch == at.Epoch && other.row.Place.Seq > at.Seq
		if behind && other.row.OrderMode == "newest" && other.row.RerunOf == "" {
			return
		}
	}
	c.violate("lines", "L8: job %s was superseded, and no newer one is in its line", j.id)
}

// checkLooked checks the lines of entries that were deleted: if it is the turn of a job, or the first
// place waits for its job, another entry will look.
func (c *checker) checkLooked() {
	for _, id := range c.unlooked {
		ln := c.lineOf(id)
		for _, seq := range ln.order() {
			if p := ln.places[seq]; c.left(seq, &p) && !c.hasEntry(p.job) {
				c.violate("lines", "L9: job %s ended before it began, place %d in line %s is still its own, and no entry leads to it",
					p.job, seq, id)
			}
		}
		if p, standing := c.first(ln); (standing == "waits" || standing == "missing") && !c.willLook(id) {
			c.violate("lines", "L5: the first job of line %s, %s, is %s, and no entry looks at it", id, p.job, standing)
		}
	}
	c.unlooked = nil
}

// left reports whether the place is that of a job that ended before it began. Unlike the place of one that has
// begun it may be in the middle of the line.
func (c *checker) left(seq int64, p *placeCopy) bool {
	j := c.jobs[p.job]
	return j != nil && j.exists && j.row.Terminal() && j.row.Attempts == 0 &&
		j.row.Place.Epoch == p.epoch && j.row.Place.Seq == seq && c.standing(seq, p) == "gone"
}

// hasEntry reports whether the schedule has an entry of the job.
func (c *checker) hasEntry(jobID string) bool {
	for key := range c.rows {
		if parts := strings.Split(key.Row, ":"); key.Table == tableSchedule && timed(parts) && parts[2] == jobID {
			return true
		}
	}
	return false
}

// willLook reports whether an entry leads to a look at the line: one that an accept reserved, or one that
// a job of the line does not name, or names after its end.
func (c *checker) willLook(id string) bool {
	for key, row := range c.rows {
		parts := strings.Split(key.Row, ":")
		if key.Table != tableSchedule || !timed(parts) {
			continue
		}
		if row.Get("line").String() == id {
			return true
		}
		if j := c.jobs[parts[2]]; j != nil && j.row.Place.Line == id && (j.row.Terminal() || c.entryKey(j) != key) {
			return true
		}
	}
	return false
}

// noteUnlooked notes that an entry was deleted that may have led to a look.
func (c *checker) noteUnlooked(entry tablestore.Properties, j *job) {
	if id := entry.Get("line").String(); id != "" {
		c.unlooked = append(c.unlooked, id)
	}
	if id := j.row.Place.Line; id != "" {
		c.unlooked = append(c.unlooked, id)
	}
}

// asks notes the first request for a command.
func (c *checker) asks(cmd *command) {
	if _, known := c.askedAt[cmd.hash()]; !known {
		c.askedAt[cmd.hash()] = c.seq
	}
}

// checkOrder checks the promise: a command whose answer came before the first request for another one of
// its line is before it.
func (c *checker) checkOrder(cmd *command, jobID string) {
	at := c.job(jobID).row.Place
	if _, known := c.answeredAt[jobID]; !known {
		c.answeredAt[jobID] = c.seq
	}
	if at.Line == "" {
		return
	}
	for other, answered := range c.answeredAt {
		place := c.job(other).row.Place
		if other != jobID && place.Epoch == at.Epoch && answered < c.askedAt[cmd.hash()] && place.Seq > at.Seq {
			c.violate("lines", "L6: job %s was answered before job %s was asked for, and is behind it", other, jobID)
		}
	}
}

// checkPurge checks that a job that is purged does not block its line.
func (c *checker) checkPurge(j *job) {
	at := j.row.Place
	if at.Line == "" {
		return
	}
	if p, ok := c.lineOf(at.Line).places[at.Seq]; ok && p.epoch == at.Epoch && c.standing(at.Seq, &p) == "blocks" {
		c.violate("lines", "job %s blocks its line and was purged", j.id)
	}
}

// blockers returns the jobs that block their lines, with these.
func (c *checker) blockers() (found [][2]string) {
	for id, ln := range c.inLine {
		p, standing := c.first(ln)
		if standing != "blocks" {
			continue
		}
		if j := c.jobs[p.job]; !j.exists { // Its rerun is lost.
			p.job = p.took
		}
		found = append(found, [2]string{id, p.job})
	}
	slices.SortFunc(found, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return found
}

// idle reports whether no place of the line counts. Such rows may be left by an accept that was so slow that
// another one had committed its job meanwhile, or by its late write: the next accept removes them.
func (c *checker) idle(id string) bool {
	_, standing := c.first(c.lineOf(id))
	return standing == ""
}

// stands reports whether the line's first job is paused.
func (c *checker) stands(id string) bool {
	p, standing := c.first(c.lineOf(id))
	return standing == "held" && c.jobs[p.job].row.State == "PAUSED"
}

// excused reports whether a job waits behind one that is paused.
func (c *checker) excused(j *job) bool {
	return j.exists && waitsInLine(&j.row) && c.stands(j.row.Place.Line)
}
