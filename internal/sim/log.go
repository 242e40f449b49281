package sim

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
)

// jobID matches the ids of jobs. Among other ids, only those of bulk operations are UUIDs
// of these versions.
var jobID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

const uuidLength = 36

// companions are pairs of fields: a record with the first must also have the second.
var companions = [][2]string{
	{"jobId", "tenant_id"}, {"stepId", "jobId"}, {"stepId", "attempt_no"}, {"correlation_id", "jobId"}, {"trace_id", "jobId"},
}

// LogFault returns what is wrong with the fields of a log record, or "". A record about a job
// must name the job and its tenant, one about a step also the attempt, and none may have a
// lease id.
//
// Source: Option B spec, 20.
func LogFault(fields map[string]any) string {
	if _, ok := fields["lease_id"]; ok {
		return "has a lease id"
	}
	for _, pair := range companions {
		if fields[pair[0]] != nil && fields[pair[1]] == nil {
			return "has " + pair[0] + ", and no " + pair[1]
		}
	}
	for field, value := range fields {
		text, ok := value.(string)
		named := ok && len(text) == uuidLength && jobID.MatchString(text)
		if named && field != "operation_id" && fields["jobId"] == nil {
			return "names a job as " + field + ", and has no jobId"
		}
	}
	return ""
}

// mayFault reports whether the record has a field that LogFault checks. Most have none.
func mayFault(line slog.Record) (may bool) {
	line.Attrs(func(a slog.Attr) bool {
		switch {
		case a.Key == "lease_id", slices.ContainsFunc(companions, func(pair [2]string) bool { return pair[0] == a.Key }):
			may = true
		case a.Value.Kind() == slog.KindString:
			may = len(a.Value.String()) == uuidLength
		default:
			may = a.Value.Kind() == slog.KindAny || a.Value.Kind() == slog.KindLogValuer
		}
		return !may
	})
	return may
}

// logCheck is a log handler that reports records with a fault.
type logCheck struct {
	report func(format string, args ...any)
	given  map[string]any
}

// Enabled implements [slog.Handler].
func (c *logCheck) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (c *logCheck) Handle(_ context.Context, line slog.Record) error {
	if len(c.given) == 0 && !mayFault(line) {
		return nil
	}
	fields := make(map[string]any, len(c.given)+line.NumAttrs())
	maps.Copy(fields, c.given)
	line.Attrs(func(a slog.Attr) bool {
		fields[a.Key] = a.Value.Resolve().Any()
		return true
	})
	if fault := LogFault(fields); fault != "" {
		c.report("the log record %q %s: %s", line.Message, fault, fmt.Sprint(fields))
	}
	return nil
}

// WithAttrs implements [slog.Handler].
func (c *logCheck) WithAttrs(attrs []slog.Attr) slog.Handler {
	given := maps.Clone(c.given)
	if given == nil {
		given = map[string]any{}
	}
	for _, a := range attrs {
		given[a.Key] = a.Value.Resolve().Any()
	}
	return &logCheck{c.report, given}
}

// WithGroup implements [slog.Handler].
func (c *logCheck) WithGroup(string) slog.Handler { return c }
