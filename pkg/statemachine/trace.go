package statemachine

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// Trace is a place in a distributed trace: a span, which need not exist yet. The ids of a
// job's spans are derived from the job's id, so every process knows them and none is
// stored.
//
// Source: Option B spec, 20; W3C Trace Context.
type Trace struct {
	ID      [16]byte
	Span    [8]byte
	Sampled bool
}

// ParseTrace reads a traceparent of W3C Trace Context with the four fields of version
// 00, in lower-case hex.
func ParseTrace(traceparent string) (t Trace, ok bool) {
	fields := strings.Split(traceparent, "-")
	if len(fields) != 4 || strings.Trim(traceparent, "-0123456789abcdef") != "" {
		return Trace{}, false
	}
	var version, flags [1]byte
	for i, to := range [][]byte{version[:], t.ID[:], t.Span[:], flags[:]} {
		if len(fields[i]) != 2*len(to) {
			return Trace{}, false
		}
		if _, err := hex.Decode(to, []byte(fields[i])); err != nil {
			return Trace{}, false
		}
	}
	t.Sampled = flags[0]&1 != 0
	return t, version[0] != 0xff && t.ID != [16]byte{} && t.Span != [8]byte{}
}

// NewTrace returns the place of a job that starts a trace: [Trace.OfJob] returns the same.
// sample decides whether the trace is recorded.
func NewTrace(jobID string, sample func(id [16]byte) bool) Trace {
	sum := sha256.Sum256([]byte(jobID))
	t := Trace{ID: [16]byte(sum[:16])}
	t.Sampled = sample(t.ID)
	return t.OfJob(jobID)
}

// OfJob returns the place of a job in the trace of its command.
func (t Trace) OfJob(jobID string) Trace { return t.at(jobID) }

// OfAttempt returns the place of an attempt of a step.
func (t Trace) OfAttempt(jobID string, stepIndex, attemptNo int) Trace {
	return t.at(nameAttempt(jobID, stepIndex, attemptNo))
}

// nameAttempt names an attempt of a step of a job.
func nameAttempt(jobID string, stepIndex, attemptNo int) string {
	return jobID + "." + strconv.Itoa(stepIndex) + "." + strconv.Itoa(attemptNo)
}

func (t Trace) at(name string) Trace {
	sum := sha256.Sum256([]byte("span " + name))
	t.Span = [8]byte(sum[:8])
	t.Span[7] |= 1 // No span has the id 0.
	return t
}

// String returns the traceparent.
func (t Trace) String() string {
	text := make([]byte, 0, len("00-")+2*len(t.ID)+len("-")+2*len(t.Span)+len("-00"))
	text = hex.AppendEncode(append(text, "00-"...), t.ID[:])
	text = hex.AppendEncode(append(text, '-'), t.Span[:])
	if t.Sampled {
		return string(append(text, "-01"...))
	}
	return string(append(text, "-00"...))
}
