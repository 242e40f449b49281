package projectionstest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The names of the projected tables.
const jobsTable, outboxTable, eventsTable = "luciusjobs", "luciusoutbox", "luciusevents"

// Compare returns the differences between the projected rows and the aggregates
// in that table, one sentence each. The error is the store's, or names a row
// that cannot be read.
func Compare(ctx context.Context, store tablestore.Walker, aggregates string) ([]string, error) {
	c := &comparison{shown: map[tablestore.Key]tablestore.Properties{}}
	for _, table := range []string{jobsTable, outboxTable, eventsTable} {
		if err := walk(ctx, store, table, func(row *tablestore.Row) error {
			c.shown[row.Key] = row.Properties
			return nil
		}); err != nil {
			return nil, err
		}
	}
	jobs := map[string]map[string]tablestore.Properties{}
	if err := walk(ctx, store, aggregates, func(row *tablestore.Row) error {
		if jobs[row.Key.Partition] == nil {
			jobs[row.Key.Partition] = map[string]tablestore.Properties{}
		}
		jobs[row.Key.Partition][row.Key.Row] = row.Properties
		return nil
	}); err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		if err := c.job(id, jobs[id]); err != nil {
			return nil, fmt.Errorf("job %s: %w", id, err)
		}
	}
	for key := range c.shown {
		c.differ("%s shows an object that does not exist", key)
	}
	slices.Sort(c.found)
	return c.found, nil
}

// walk reads a whole table.
func walk(ctx context.Context, store tablestore.Walker, table string, visit func(*tablestore.Row) error) error {
	for next := (tablestore.Walk{Table: table}); ; {
		rows, err := store.Walk(ctx, next)
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			if err := visit(&rows[i]); err != nil {
				return err
			}
		}
		next = next.After(rows)
	}
}

// comparison holds the projected rows that are not compared yet.
type comparison struct {
	shown map[tablestore.Key]tablestore.Properties
	found []string
}

func (c *comparison) differ(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

// job compares the rows of one partition, by row key.
func (c *comparison) job(id string, rows map[string]tablestore.Properties) error {
	job := rows["JOB"]
	if job == nil || job.Get("tombstone").Bool() {
		return nil
	}
	bucket := job.Get("tenant_bucket").String()
	partition := tablestore.Escape(job.Get("tenant_id").String()) + bucket[strings.LastIndex(bucket, ":"):]
	c.row(tablestore.Key{Table: jobsTable, Partition: partition, Row: id}, without(job, standsFor...))
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		kind, rest, _ := strings.Cut(name, ":")
		switch kind {
		case "OUTBOX":
			c.outbox(partition, id, rows[name], func(attempt int64) []byte {
				step, _, _ := strings.Cut(rest, ":")
				return tablestore.Large(rows["DIRECTIVE:"+step+":"+tablestore.Pad(attempt, 6)], "directive")
			}, job.Get("rev").Int())
		case "EVENT":
			if err := c.events(id, rows[name]); err != nil {
				return fmt.Errorf("row %s: %w", name, err)
			}
		}
	}
	return nil
}

// standsFor are the columns of a JOB row that Phase 1 does not have: they name the job's
// rows in other partitions, and tell since when it waits.
var standsFor = []string{
	"stage_at", "entry_kind", "entry_due", "entry_nonce", "slot_partition", "slot_row", "slot_numbered", "claim",
}

// outbox compares one outbox row.
func (c *comparison) outbox(partition, id string, row tablestore.Properties, directive func(int64) []byte, rev int64) {
	key := tablestore.Key{Table: outboxTable, Partition: partition, Row: row.Get("outbox_id").String()}
	want := append(without(row, "step_id"),
		tablestore.Property{Name: "jobId", Value: tablestore.String(id)},
		tablestore.Property{Name: "stepId", Value: row.Get("step_id")},
		tablestore.Property{Name: "partition", Value: row.Get("lane")},
		tablestore.Property{Name: "rev", Value: c.shown[key].Get("rev")},
	)
	if at := c.shown[key].Get("rev").Int(); at > rev {
		c.differ("%s shows rev %d of %d", key, at, rev)
	}
	c.row(key, tablestore.AppendLarge(want, "payload", directive(row.Get("attempt_no").Int())))
}

// entry is an entry of a journal row.
type entry struct {
	Object string `json:"object"`
	ID     string `json:"object_id"`
	Type   string `json:"type"`
	From   string `json:"from"`
	To     string `json:"to"`
	Number int    `json:"attempt_no"`
	Owner  string `json:"owner"`
	Cause  string `json:"cause"`
	Detail string `json:"detail"`
}

// events compares the events of one journal row.
func (c *comparison) events(id string, row tablestore.Properties) error {
	var entries []entry
	if err := json.Unmarshal(tablestore.Large(row, "entries"), &entries); err != nil {
		return err
	}
	at, rev := row.Get("at").Time(), row.Get("rev").Int()
	for i, e := range entries {
		eventID := fmt.Sprintf("%012d-%03d", rev, i)
		key := tablestore.Key{Table: eventsTable, Partition: id, Row: at.Format("20060102T150405.000Z") + ":" + eventID}
		payload := map[string]any{
			"event_id": eventID, "rev": rev, "type": e.Type, "at": at.Format("2006-01-02T15:04:05.000Z"),
			"actor": row.Get("actor").String(), "caller": row.Get("caller").String(),
			"object": e.Object, "object_id": e.ID, "from": e.From, "to": e.To,
			"attempt_no": e.Number, "owner": e.Owner, "cause": e.Cause, "request_id": row.Get("request_id").String(), "detail": e.Detail,
		}
		if sent := row.Get("callback_timestamp").String(); sent != "" {
			callback := map[string]any{"timestamp": sent}
			if id := row.Get("callback_correlation_id").String(); id != "" {
				callback["correlation_id"] = id
			}
			payload["callback"] = callback
		}
		got := c.shown[key]
		if differs, err := c.payload(tablestore.Large(got, "payload"), payload); err != nil || differs {
			c.differ("%s has the payload %s", key, tablestore.Large(got, "payload"))
		}
		c.row(key, tablestore.AppendLarge(tablestore.Properties{
			{Name: "v", Value: tablestore.Int(1)}, {Name: "jobId", Value: tablestore.String(id)},
			{Name: "event_id", Value: tablestore.String(eventID)},
			{Name: "rev", Value: tablestore.Int(rev)}, {Name: "event_type", Value: tablestore.String(e.Type)},
			{Name: "created_at", Value: tablestore.Time(at)},
		}, "payload", tablestore.Large(got, "payload")))
	}
	return nil
}

// payload reports whether the JSON differs from want without its empty values.
func (c *comparison) payload(text []byte, want map[string]any) (bool, error) {
	maps.DeleteFunc(want, func(_ string, value any) bool { return value == "" || value == 0 })
	expected, err := json.Marshal(want)
	if err != nil {
		return false, err
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		return false, err
	}
	found, err := json.Marshal(got)
	return string(found) != string(expected), err
}

// row compares one row and marks it as compared.
func (c *comparison) row(key tablestore.Key, want tablestore.Properties) {
	got, ok := c.shown[key]
	delete(c.shown, key)
	if !ok {
		c.differ("%s is missing", key)
		return
	}
	if got.Equal(want) {
		return
	}
	for _, name := range names(got, want) {
		if a, b := got.Get(name), want.Get(name); !a.Equal(b) {
			c.differ("%s has %s %s, not %s", key, name, text(a), text(b))
		}
	}
}

// names returns the names of both, each once.
func names(a, b tablestore.Properties) []string {
	all := map[string]bool{}
	for _, p := range slices.Concat(a, b) {
		all[p.Name] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// text formats a value for error messages.
func text(v tablestore.Value) string {
	switch v.Kind() {
	case tablestore.KindString:
		return v.String()
	case tablestore.KindInt:
		return fmt.Sprint(v.Int())
	case tablestore.KindBool:
		return fmt.Sprint(v.Bool())
	case tablestore.KindTime:
		return v.Time().Format(time.RFC3339Nano)
	}
	return "nothing"
}

// without returns the properties except those with these names.
func without(p tablestore.Properties, names ...string) tablestore.Properties {
	return slices.DeleteFunc(slices.Clone(p), func(c tablestore.Property) bool { return slices.Contains(names, c.Name) })
}
