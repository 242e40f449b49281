package audit

import (
	"fmt"
	"slices"
	"strings"
)

// judge holds one job against the rules.
type judge struct {
	*Evidence
	o        *Options
	findings []Finding
}

// Judge returns what is wrong with one job, nothing where all is well. It only
// reads the evidence.
func (e *Evidence) Judge(o *Options) []Finding {
	j := &judge{Evidence: e, o: o}
	for _, text := range e.unreadable {
		j.violate(Readable, "%s", text)
	}
	switch {
	case e.Job == nil:
		j.judgeMissing()
		return j.findings
	case e.Job.Tombstone || len(e.unreadable) > 0:
		return j.findings
	}
	slices.SortFunc(j.changes, func(a, b change) int { return int(a.rev - b.rev) })
	slices.SortFunc(j.Steps, func(a, b StepRow) int { return a.Index - b.Index })
	j.judgeJournal()
	j.judgeSteps()
	j.judgeOutbox()
	j.judgeDirectives()
	j.judgeBeside()
	j.judgeItems()
	j.judgeMoves()
	if e.Job.Terminal() {
		j.judgeEnd()
	} else {
		j.judgeForward()
	}
	return j.findings
}

// Shape judges the rows of the job alone, without history and what lies beside:
// what holds after every single change.
func (e *Evidence) Shape() []Finding {
	j := &judge{Evidence: e, o: &Options{}}
	j.judgeSteps()
	j.judgeOutbox()
	j.judgeItems()
	return j.findings
}

// judgeMissing is for rows of a job without a JOB row.
func (j *judge) judgeMissing() {
	if len(j.Steps)+len(j.Outbox)+len(j.changes) > 0 {
		j.violate(Accepted, "its rows are there but for JOB")
	}
}

// violate notes a violation.
func (j *judge) violate(rule Invariant, format string, args ...any) {
	j.findings = append(j.findings, Finding{Invariant: rule, JobID: j.JobID, Detail: fmt.Sprintf(format, args...)})
}

// late notes that something is overdue.
func (j *judge) late(rule Invariant, format string, args ...any) {
	j.findings = append(j.findings, Finding{
		Invariant: rule, Late: true, JobID: j.JobID, Detail: fmt.Sprintf(format, args...),
	})
}

// judgeSteps checks that steps go one by one, and that the job says what they do.
func (j *judge) judgeSteps() {
	active, done, failed, total := 0, 0, 0, 0
	leases := map[string]string{}
	for i := range j.Steps {
		s := &j.Steps[i]
		total += s.Attempt
		if s.Index != i {
			j.violate(OneStep, "step %d is not there", i)
			return
		}
		if s.State != "PENDING" && s.State != "CANCELLED" && done < i {
			j.violate(OneStep, "step %s is %s before all before it have succeeded", s.ID, s.State)
		}
		switch {
		case s.Active():
			active++
		case s.State == "SUCCEEDED":
			done++
		case s.State == "FAILED_FINAL":
			failed++
		}
		j.judgeStep(s, leases)
	}
	state := j.Job.State
	switch {
	case active > 1:
		j.violate(OneStep, "%d steps are in progress", active)
	case state == "QUEUED", state == "SUCCEEDED" && done < len(j.Steps), state == "FAILED_FINAL" && failed != 1,
		j.Job.Terminal() && active > 0, !j.Job.Terminal() && active == 0 && done == len(j.Steps),
		failed > 0 && state != "FAILED_FINAL" && state != "CANCELLED":
		j.violate(OneStep, "it is %s and its steps are %s", state, j.stepStates())
	case state == "PAUSED" && slices.ContainsFunc(j.Steps, func(s StepRow) bool { return s.Live() }):
		j.violate(OneStep, "it is PAUSED with an attempt in hand")
	case int64(total) != j.Job.Attempts:
		j.violate(Pair, "it counts %d attempts and its steps %d", j.Job.Attempts, total)
	case state == "FAILED_FINAL" && j.Job.Code == "":
		j.violate(Budget, "it failed and does not say why")
	}
}

// stepStates lists the states of the steps.
func (j *judge) stepStates() string {
	states := make([]string, len(j.Steps))
	for i := range j.Steps {
		states[i] = j.Steps[i].State
	}
	return strings.Join(states, ", ")
}

// judgeStep checks one step by itself.
func (j *judge) judgeStep(s *StepRow, leases map[string]string) {
	if s.Live() && s.Lease == "" {
		j.violate(Pair, "step %s is %s without a lease", s.ID, s.State)
	}
	if other := leases[s.Lease]; s.Lease != "" && other != "" {
		j.violate(Pair, "steps %s and %s have one lease", other, s.ID)
	}
	leases[s.Lease] = s.ID
	said := s.ErrorCode == "dispatch_exhausted" // The bus said that it can never take it.
	for _, m := range s.Memory {
		said = said || m.Result == "FAILED_FINAL"
		if m.No > s.Attempt {
			j.violate(Pair, "step %s remembers attempt %d and is at %d", s.ID, m.No, s.Attempt)
		}
	}
	spent := 0
	for i := range s.Spent {
		said = said || s.Spent[i] > s.Budget[i]
		spent += s.Spent[i]
		if s.Spent[i] > s.Budget[i]+1 {
			j.violate(Budget, "step %s spent %d of a budget of %d", s.ID, s.Spent[i], s.Budget[i])
		}
	}
	said = said || s.MaxAttempts > 0 && spent >= s.MaxAttempts
	if s.State == "FAILED_FINAL" && (!said || s.ErrorCode == "") {
		j.violate(Budget, "step %s failed for good (%q) with budget left", s.ID, s.ErrorCode)
	}
}
