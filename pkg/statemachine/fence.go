package statemachine

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// remembered is how many attempts a step remembers. Older ones are stale in
// any case; the newest are those whose callbacks can still be repeated.
const remembered = 32

// LeaseDigest is what a step keeps of a lease id.
func LeaseDigest(leaseID string) string {
	sum := sha256.Sum256([]byte(leaseID))
	return hex.EncodeToString(sum[:12])
}

// fencing is how a callback's pair stands to the step.
type fencing uint8

const (
	fenceCurrent fencing = iota // the pair of the attempt that may report
	fencePast                   // the pair of a remembered attempt that may not
	fenceUnknown                // no pair that this step ever had, or one too old
)

// fence compares the pair with the step and returns the remembered attempt.
func fence(step *Step, pair Pair) (fencing, *Attempt) {
	attempt := step.attempt(pair.AttemptNo)
	if step.LeaseID != "" && pair.AttemptNo == step.AttemptNo && pair.LeaseID == step.LeaseID {
		return fenceCurrent, attempt
	}
	if attempt != nil && attempt.LeaseDigest == LeaseDigest(pair.LeaseID) {
		return fencePast, attempt
	}
	return fenceUnknown, nil
}

// attempt returns the remembered attempt of that number, nil where there is none.
func (s *Step) attempt(no int) *Attempt {
	for i := len(s.Attempts) - 1; i >= 0; i-- {
		if s.Attempts[i].No == no {
			return &s.Attempts[i]
		}
	}
	return nil
}

// remember adds or changes the record of the step's current attempt. The slice
// is copied: the aggregate before keeps its own.
func (m *move) remember(i int, change func(*Attempt)) {
	step := &m.agg.Steps[i]
	step.Attempts = slices.Clone(step.Attempts)
	if record := step.attempt(step.AttemptNo); record != nil {
		change(record)
		return
	}
	record := Attempt{No: step.AttemptNo, LeaseDigest: LeaseDigest(step.LeaseID)}
	change(&record)
	step.Attempts = append(step.Attempts, record)
	if extra := len(step.Attempts) - remembered; extra > 0 {
		step.Attempts = slices.Delete(step.Attempts, 0, extra)
	}
}

// stale refuses a callback whose pair is not the current one. It is recorded
// for attempts up to the current one; a number that was never given out is only
// counted, since nobody could bound such rows.
func (m *move) stale(i int, pair Pair, kind string) {
	step := &m.agg.Steps[i]
	m.refuse(CodeStaleAttempt, "attempt %d of step %q is not the current one", pair.AttemptNo, step.ID)
	if pair.AttemptNo >= 1 && pair.AttemptNo <= step.AttemptNo {
		m.d.Fenced = &Fenced{StepID: step.ID, StepIndex: i, AttemptNo: pair.AttemptNo, Kind: kind}
	}
}

// find returns the step that a callback names, or refuses it.
func (m *move) find(stepID string) (int, bool) {
	i, ok := m.agg.step(stepID)
	if !ok {
		m.refuse(CodeStepNotFound, "the job has no step %q", stepID)
	}
	return i, ok
}

// Result is the status of the RESULT that was applied to that attempt, empty if
// none was or the attempt is forgotten.
func (s *Step) Result(attemptNo int) ResultStatus {
	if attempt := s.attempt(attemptNo); attempt != nil {
		return attempt.Result
	}
	return ""
}
