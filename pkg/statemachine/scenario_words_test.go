package statemachine_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// verb is an event's word in a scenario, with the kinds of arguments that it takes. An
// attempt and a status are required; the others are optional.
type verb struct {
	takes string
	event func(*args) statemachine.Event
}

// verbs are the words for all events.
var verbs = map[string]verb{
	"accept": {"", func(*args) statemachine.Event { return statemachine.Accept{} }},
	"taken":  {"", func(*args) statemachine.Event { return statemachine.DispatchClaimed{} }},
	"published": {"attempt", func(a *args) statemachine.Event {
		return statemachine.Published{OutboxID: a.row.ID, AttemptNo: a.row.AttemptNo}
	}},
	"publish-rejected": {"attempt permanent", func(a *args) statemachine.Event {
		return statemachine.PublishRejected{OutboxID: a.row.ID, AttemptNo: a.row.AttemptNo, Permanent: a.says("permanent")}
	}},
	"claimed": {"attempt forged lease", func(a *args) statemachine.Event {
		return statemachine.Claimed{StepID: a.row.StepID, Pair: a.pair(), Lease: a.duration("lease")}
	}},
	"claim-extended": {"attempt forged", func(a *args) statemachine.Event {
		return statemachine.ClaimExtended{StepID: a.row.StepID, Pair: a.pair()}
	}},
	"ack": {"attempt forged lease", func(a *args) statemachine.Event {
		return statemachine.Ack{StepID: a.row.StepID, Pair: a.pair(), Lease: a.duration("lease")}
	}},
	"heartbeat": {"attempt forged", func(a *args) statemachine.Event {
		return statemachine.Heartbeat{StepID: a.row.StepID, Pair: a.pair()}
	}},
	"result": {"attempt forged status code retry-after throttled ref", func(a *args) statemachine.Event {
		result := statemachine.Result{
			StepID: a.row.StepID, Pair: a.pair(), Status: statemachine.ResultStatus(a.said["status"]),
			ErrorCode: a.said["code"], RetryAfter: a.duration("retry-after"),
			Throttled: statemachine.Throttle(a.said["throttled"]),
		}
		if a.says("ref") {
			result.ResultRef = fmt.Appendf(nil, `{"uri":%q}`, a.said["ref"])
		}
		return result
	}},
	"deadline-passed": {"by outage", func(a *args) statemachine.Event {
		return statemachine.DeadlinePassed{By: a.clock("by"), Outage: a.clock("outage")}
	}},
	"cancel": {"", func(*args) statemachine.Event { return statemachine.Cancel{} }},
	"pause":  {"", func(*args) statemachine.Event { return statemachine.Pause{} }},
	"resume": {"", func(*args) statemachine.Event { return statemachine.Resume{} }},
	"reschedule": {"not-before not-after", func(a *args) statemachine.Event {
		return statemachine.Reschedule{NotBefore: a.date("not-before"), NotAfter: a.date("not-after")}
	}},
	"prioritize": {"class", func(a *args) statemachine.Event {
		class, ok := statemachine.ParseClass(a.said["class"])
		if !ok {
			a.wrong("no class %q", a.said["class"])
		}
		return statemachine.Prioritize{Class: class}
	}},
	"retry": {"step", func(a *args) statemachine.Event { return statemachine.Retry{StepID: a.said["step"]} }},
	"stall": {"attempt", func(a *args) statemachine.Event {
		return statemachine.Stall{StepID: a.row.StepID, AttemptNo: a.row.AttemptNo}
	}},
}

// args are the words after the first one, by their kinds, and the row of the attempt that
// they name. They keep the first error.
type args struct {
	said map[string]string
	row  statemachine.Outbox
	err  error
}

// args sorts the words by their kinds.
func (s *scenario) args(takes string, fields []string) *args {
	a := &args{said: map[string]string{}}
	kinds := strings.Fields(takes)
	for _, word := range fields {
		kind, value := s.kind(word)
		if !slices.Contains(kinds, kind) || a.says(kind) {
			a.wrong("unknown word %q", word)
		}
		a.said[kind] = value
	}
	for _, kind := range []string{"attempt", "status"} {
		if slices.Contains(kinds, kind) && !a.says(kind) {
			a.wrong("it needs to say which %s", kind)
		}
	}
	// An attempt that was never dispatched has a pair and a row that do not exist.
	name := a.said["attempt"]
	row, ok := s.given[name]
	if !ok && name != "" {
		id, number, _ := strings.Cut(name, "#")
		row = statemachine.Outbox{ID: "unknown", StepID: id, AttemptNo: a.number(number), LeaseID: "unknown"}
	}
	a.row = row
	return a
}

// kind returns the kind of a word and its value.
func (s *scenario) kind(word string) (kind, value string) {
	if key, value, ok := strings.Cut(word, "="); ok && value != "" {
		return key, value
	}
	switch {
	case strings.Contains(word, "#"):
		return "attempt", word
	case slices.Contains([]string{"SUCCEEDED", "FAILED_RETRY", "FAILED_FINAL"}, word):
		return "status", word
	case slices.ContainsFunc(s.agg.Steps, func(step statemachine.Step) bool { return step.ID == word }):
		return "step", word
	}
	return word, word
}

func (a *args) says(kind string) bool { return a.said[kind] != "" }

// wrong keeps the first error.
func (a *args) wrong(format string, values ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, values...)
	}
}

// pair returns the fence of the attempt, forged if the words say so.
func (a *args) pair() statemachine.Pair {
	if a.says("forged") {
		return statemachine.Pair{AttemptNo: a.row.AttemptNo, LeaseID: "forged"}
	}
	return statemachine.Pair{AttemptNo: a.row.AttemptNo, LeaseID: a.row.LeaseID}
}

// bus returns the bus that the words name, or else the default.
func (a *args) bus(otherwise statemachine.Bus) statemachine.Bus {
	switch said := statemachine.Bus(a.said["bus"]); said {
	case "":
		return otherwise
	case statemachine.BusQueue, statemachine.BusServiceBus:
		return said
	default:
		a.wrong("%q is no bus", said)
		return otherwise
	}
}

// clock returns a time such as +1m30s, relative to the start; zero if there is none.
func (a *args) clock(kind string) time.Time {
	if !a.says(kind) {
		return time.Time{}
	}
	offset, ok := strings.CutPrefix(a.said[kind], "+")
	if !ok {
		a.wrong("%q is no time: write it as +1m30s, counted from the start", a.said[kind])
	}
	return start.Add(a.parse(offset))
}

// date returns such a time, nil if there is none, and the zero time for "none".
func (a *args) date(kind string) *time.Time {
	switch {
	case !a.says(kind):
		return nil
	case a.said[kind] == "none":
		return &time.Time{}
	}
	at := a.clock(kind)
	return &at
}

// duration returns the given duration, 0 if there is none.
func (a *args) duration(kind string) time.Duration {
	if !a.says(kind) {
		return 0
	}
	return a.parse(a.said[kind])
}

// delays returns the given delays, such as 1m,5m, or else the default.
func (a *args) delays(kind string, otherwise []time.Duration) []time.Duration {
	if !a.says(kind) {
		return otherwise
	}
	var out []time.Duration
	for text := range strings.SplitSeq(a.said[kind], ",") {
		out = append(out, a.parse(text))
	}
	return out
}

// parse reads a duration.
func (a *args) parse(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		a.wrong("%q is no duration", text)
	}
	return d
}

// number reads a number.
func (a *args) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		a.wrong("%q is no number", text)
	}
	return n
}
