package sim

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// tableCron holds the schedules.
const tableCron = "luciuscron"

// cronKey addresses a row of a schedule.
func cronKey(id string, parts ...string) tablestore.Key {
	return tablestore.Key{Table: tableCron, Partition: id, Row: tablestore.Join(parts...)}
}

// checkCron checks a batch on the partition of a schedule.
func (c *checker) checkCron(id string, writes []write) {
	for i := range writes {
		w := &writes[i]
		switch w.kind {
		case "FIRE", "RUN":
			c.checkFire(id, w)
		case "BACKFILL":
			c.checkBackfill(id, w)
		case "HEAD":
			c.checkCronHead(id, w)
		}
	}
}

// checkFire checks a change of what became of an occurrence.
func (c *checker) checkFire(id string, w *write) {
	row := w.op.Properties
	at := row.Get("scheduled_for").Time()
	head := c.rows[cronKey(id, "HEAD")]
	if w.gone() {
		if last := head.Get("last").Time(); w.old.Get("scheduled_for").Time().After(last) {
			c.violate("schedules", "S3: occurrence %s of schedule %s was forgotten before it was decided", w.op.Key.Row, id)
		}
		return
	}
	was, now := w.old.Get("outcome").String(), row.Get("outcome").String()
	if w.was && was != "claimed" && was != now && (now != "claimed" || was == "fired" || !c.backfilled(id, w)) {
		c.violate("schedules", "S2: occurrence %s of schedule %s was %s and became %s", at, id, was, now)
	}
	if w.was && w.old.Get("job_purged").Bool() && w.old.Get("job_id") != row.Get("job_id") {
		c.violate("schedules", "S1: occurrence %s of schedule %s, whose job was purged, has another job", at, id)
	}
	switch job := c.occurrences[occurrenceOf(id, w.op.Key.Row)]; now {
	case "claimed":
		if state := head.Get("state").String(); w.kind == "FIRE" && !w.was && at.After(head.Get("last").Time()) &&
			(state == "paused" || state == "deleted") {
			c.violate("schedules", "S8: occurrence %s of schedule %s is claimed, which is %s and decided until %s",
				at, id, state, head.Get("last").Time())
		}
		if by := row.Get("backfill_id").String(); by != "" && c.rows[cronKey(id, "BACKFILL", by)].Get("done").Bool() {
			c.violate("schedules", "S7: occurrence %s of schedule %s is claimed for backfill %s, which has ended", at, id, by)
		}
	case "skipped", "refused", "missed":
		if job != "" {
			c.violate("schedules", "S6: occurrence %s of schedule %s is %s and has the job %s", at, id, now, job)
		}
		due, decided := at.Add(calendar.Jitter(id, at, c.jitter(id, row))), row.Get("decided_at").Time()
		if row.Get("detail").String() == "was not fired in time" && decided.Before(due.Add(time.Minute)) {
			c.violate("schedules", "S9: occurrence %s of schedule %s, due at %s, was late at %s", at, id, due, decided)
		}
	case "fired":
		if job == "" || job != row.Get("job_id").String() {
			c.violate("schedules", "S2: occurrence %s of schedule %s is fired with job %s, and has the job %q",
				at, id, row.Get("job_id").String(), job)
		}
	}
}

// jitter returns the jitter of the version that a row names.
func (c *checker) jitter(id string, row tablestore.Properties) time.Duration {
	version := c.rows[cronKey(id, "VERSION", tablestore.Pad(row.Get("version").Int(), 9))]
	return time.Duration(version.Get("jitter_ms").Int()) * time.Millisecond
}

// backfilled reports whether a backfill may give the occurrence a job though it had none.
func (c *checker) backfilled(id string, w *write) bool {
	fire := w.op.Properties
	by, at := fire.Get("backfill_id").String(), fire.Get("scheduled_for").Time()
	row := c.rows[cronKey(id, "BACKFILL", by)]
	return row != nil && !row.Get("repeat").Bool() &&
		!at.Before(row.Get("from").Time()) && !at.After(row.Get("to").Time())
}

// checkBackfill checks that an entry leads to a backfill that has not ended, and that one that has ended left no claim.
func (c *checker) checkBackfill(id string, w *write) {
	row := w.op.Properties
	if w.gone() {
		return
	}
	if row.Get("done").Bool() {
		for key, fire := range c.rows {
			if key.Table == tableCron && key.Partition == id && fire.Get("outcome").String() == "claimed" &&
				fire.Get("backfill_id") == row.Get("id") {
				c.violate("schedules", "S7: backfill %s of schedule %s has ended, and left %s claimed", row.Get("id").String(), id, key.Row)
			}
		}
		return
	}
	entry := tablestore.Key{Table: tableSchedule, Partition: "cron", Row: backfillEntry(id, row)}
	if c.rows[entry] == nil {
		c.violate("schedules", "S4: the entry of a backfill of schedule %s, %s, is missing", id, entry.Row)
	}
}

// backfillEntry returns the row key of the entry that a backfill has.
func backfillEntry(id string, row tablestore.Properties) string {
	return tablestore.Join(tablestore.Pad(row.Get("due").Time().UnixMilli(), 13), id, "b-"+row.Get("id").String())
}

// occurrenceOf names the claim of an occurrence.
func occurrenceOf(id, row string) string { return id + "/" + row }

// takeOccurrence notes the job of an occurrence, and checks that it is the only one.
func (c *checker) takeOccurrence(j *job, row tablestore.Properties) {
	var of struct {
		ID string `json:"schedule_id"`
	}
	if json.Unmarshal([]byte(row.Get("occurrence").String()), &of) != nil {
		return
	}
	name := occurrenceOf(of.ID, row.Get("claim").String())
	claim := c.rows[cronKey(of.ID, strings.Split(row.Get("claim").String(), ":")...)]
	switch known := c.occurrences[name]; {
	case known != "" && known != j.id:
		c.violate("schedules", "S1: %s has the jobs %s and %s", name, known, j.id)
	case known == "" && claim.Get("job_id").String() != j.id:
		c.violate("schedules", "S6: %s, which is %s, gets the job %s", name, claim.Get("outcome").String(), j.id)
	}
	c.occurrences[name] = j.id
}

// checkCronHead checks a change of HEAD: with it, occurrences count as decided.
func (c *checker) checkCronHead(id string, w *write) {
	row, old := w.op.Properties, w.old
	last, next := row.Get("last").Time(), row.Get("next").Time()
	if last.Before(old.Get("last").Time()) {
		c.violate("schedules", "S5: the last occurrence of schedule %s went from %s back to %s", id, old.Get("last").Time(), last)
	}
	if old.Get("state").String() == "active" || old.Get("state").String() == "paused" && row.Get("state").String() == "active" {
		c.checkDecided(id, int(old.Get("version").Int()), old.Get("last").Time(), last)
	}
	if row.Get("state").String() != "active" {
		return
	}
	if !last.Before(next) {
		c.violate("schedules", "S5: the last occurrence of schedule %s is %s, and the next is %s", id, last, next)
	}
	entry := tablestore.Key{Table: tableSchedule, Partition: "cron", Row: cronEntry(id, row)}
	due, trying := row.Get("entry_due").Time(), !row.Get("trying").Time().IsZero()
	if c.rows[entry] == nil {
		c.violate("schedules", "S4: the entry of schedule %s, %s, is missing", id, entry.Row)
	} else if due.After(next.Add(c.jitter(id, row)+time.Minute)) && !trying {
		c.violate("schedules", "S4: the entry of schedule %s is due at %s, and the schedule at %s", id, due, next)
	}
}

// cronEntry returns the row key of the entry that HEAD names.
func cronEntry(id string, head tablestore.Properties) string {
	return tablestore.Join(tablestore.Pad(head.Get("entry_due").Time().UnixMilli(), 13), id, head.Get("entry_nonce").String())
}

// checkDecided checks that the history has every occurrence of a version after one time and up to another.
func (c *checker) checkDecided(id string, version int, after, last time.Time) {
	row := c.rows[cronKey(id, "VERSION", tablestore.Pad(version, 9))]
	if row == nil {
		return // The schedule was never made.
	}
	cal, err := calendar.Parse(calendar.Spec{
		Cron: row.Get("cron").String(), Every: time.Duration(row.Get("every_ms").Int()) * time.Millisecond,
		TimeZone: row.Get("time_zone").String(), StartAt: row.Get("start_at").Time(),
	})
	if err != nil {
		c.violate("schedules", "version %d of schedule %s: %v", version, id, err)
		return
	}
	for at, ok := cal.Next(after); ok && !at.After(last); at, ok = cal.Next(at) {
		if c.rows[cronKey(id, "FIRE", tablestore.Pad(9_999_999_999_999-at.UnixMilli(), 13))] == nil && !c.ranged(id, at) {
			c.violate("schedules", "S3: occurrence %s of schedule %s counts as decided, and is not in the history", at, id)
			return
		}
	}
}

// ranged reports whether a row of many missed occurrences covers that time.
func (c *checker) ranged(id string, at time.Time) bool {
	for key, row := range c.rows {
		if key.Table == tableCron && key.Partition == id && strings.HasPrefix(key.Row, "RANGE:") &&
			!at.Before(row.Get("from").Time()) && !at.After(row.Get("scheduled_for").Time()) {
			return true
		}
	}
	return false
}

// checkCronEntries checks that an entry of a schedule is deleted only when it is no longer needed.
func (c *checker) checkCronEntries(writes []write) {
	for i := range writes {
		w := &writes[i]
		parts := strings.Split(w.op.Key.Row, ":")
		if !w.gone() || !w.was || len(parts) != 3 {
			continue
		}
		seq := w.old.Get("rev").Int()
		if id, of := strings.CutPrefix(parts[2], "b-"); of {
			row := c.rows[cronKey(parts[1], "BACKFILL", id)]
			if row != nil && !row.Get("done").Bool() && (row.Get("seq").Int() < seq || backfillEntry(parts[1], row) == w.op.Key.Row) {
				c.violate("schedules", "S4: the entry of change %d of a backfill of schedule %s was deleted at change %d",
					seq, parts[1], row.Get("seq").Int())
			}
			continue
		}
		head := c.rows[cronKey(parts[1], "HEAD")]
		switch {
		case head.Get("seq").Int() < seq:
			c.violate("schedules", "an entry of schedule %s for change %d was deleted at change %d", parts[1], seq, head.Get("seq").Int())
		case head.Get("state").String() == "active" && cronEntry(parts[1], head) == w.op.Key.Row:
			c.violate("schedules", "S4: the entry that schedule %s names was deleted", parts[1])
		}
	}
}
