package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// lineScript plays what clients, workers and operators do with the jobs of one line.
type lineScript struct {
	*ledgertest.Ledger
	t    *testing.T
	jobs map[string]string // ids by name
}

func newLineScript(t *testing.T, l *ledgertest.Ledger) *lineScript {
	return &lineScript{Ledger: l, t: t, jobs: map[string]string{}}
}

// ordered is a command of the line "doc" of a tenant.
func ordered(name string, mode statemachine.OrderMode) ledger.Command {
	cmd := ledgertest.Command("tenant_a", name)
	cmd.Job.Order = statemachine.Order{Key: "doc", Mode: mode, Blocks: mode == statemachine.OrderFIFO}
	return cmd
}

// play plays a script, one action a line:
//
//	accept NAME [newest|reject|continue|cancel|in DURATION|expires DURATION]…
//	end|fail|cancel|pause|resume|release|purge NAME
//	rerun|restart|newest|dated NAME NEW      a dated rerun begins in an hour, and expires in two
//	wait DURATION
//	want NAME=STATE…      waits, parked, runs, paused, done, failed, cancelled, superseded, expired
//	places N              how many places the line has
//
// An action that begins with "refused" must be refused.
func (s *lineScript) play(script string) {
	s.t.Helper()
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if words[0] == "want" || words[0] == "places" {
			s.check(words)
			continue
		}
		refused := words[0] == "refused"
		if refused {
			words = words[1:]
		}
		if err := s.act(words); (err != nil) != refused {
			s.t.Fatalf("%s: error %v", strings.TrimSpace(line), err)
		}
	}
}

func (s *lineScript) act(words []string) error {
	switch name := words[1]; words[0] {
	case "accept":
		cmd := ordered(name, statemachine.OrderFIFO)
		for i := 2; i < len(words); i++ {
			switch words[i] {
			case "newest", "reject":
				cmd.Job.Order.Mode, cmd.Job.Order.Blocks = statemachine.OrderMode(words[i]), false
			case "continue":
				cmd.Job.Order.Blocks = false
			case "cancel":
				cmd.Job.Order.CancelsRunning = true
			case "in", "expires":
				at := time.Now().Add(s.duration(words[i+1])).UTC().Truncate(time.Millisecond)
				if words[i] == "in" {
					cmd.Job.NotBefore = at
				} else {
					cmd.Job.NotAfter = at
				}
				i++
			case "most":
				cmd.MaxWaiting = 2
			default:
				s.t.Fatalf("what is %q?", words[i])
			}
		}
		accepted, err := s.Accept(s.t.Context(), cmd)
		if err == nil {
			s.jobs[name] = accepted.Job.ID
			err = accepted.PostErr
		}
		return err
	case "end", "fail":
		status := map[string]statemachine.ResultStatus{"end": statemachine.ResultSucceeded, "fail": statemachine.ResultFailedFinal}[words[0]]
		s.Apply(s.jobs[name], ledgertest.Ended(s.MessageOf(s.jobs[name]), status, ""))
	case "cancel":
		s.Apply(s.jobs[name], statemachine.Cancel{})
	case "pause":
		s.Apply(s.jobs[name], statemachine.Pause{})
	case "resume":
		s.Apply(s.jobs[name], statemachine.Resume{})
	case "reschedule":
		at := time.Now().Add(s.duration(words[2])).UTC().Truncate(time.Millisecond)
		s.Apply(s.jobs[name], statemachine.Reschedule{NotBefore: &at})
	case "rerun", "restart", "newest", "dated":
		rerun := ledger.Rerun{JobID: s.jobs[name], From: ledger.FromFailed, Newest: words[0] == "newest"}
		switch words[0] {
		case "restart":
			rerun.From = ledger.FromStart
		case "dated":
			rerun.Edit = func(_ *statemachine.Aggregate, cmd *ledger.Command) error {
				cmd.Job.NotBefore = time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
				cmd.Job.NotAfter = cmd.Job.NotBefore.Add(time.Hour)
				return nil
			}
		}
		accepted, err := s.Rerun(s.t.Context(), rerun)
		if err == nil {
			s.jobs[words[2]] = accepted.Job.ID
		}
		return err
	case "release":
		return s.Release(s.t.Context(), ledger.Release{
			LineID: ledger.LineID("tenant_a", "doc"), JobID: s.jobs[name], Actor: "ann", Reason: "known", RequestID: "r",
		})
	case "wait":
		time.Sleep(s.duration(name))
		for range 3 {
			s.Expire(ledger.Dispatch, ledger.Timer, ledger.Date)
		}
	default:
		s.t.Fatalf("what is %q?", words[0])
	}
	return nil
}

func (s *lineScript) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// state is the state of a job in the words of the scripts.
func (s *lineScript) state(name string) string {
	job := s.Read(s.jobs[name]).Job
	switch {
	case job.Parked:
		return "parked"
	case job.AwaitsTurn():
		return "waits"
	case !job.State.Terminal() && job.State != statemachine.JobPaused:
		return "runs"
	case job.ErrorCode == statemachine.ErrorSuperseded || job.ErrorCode == statemachine.ErrorExpired:
		return job.ErrorCode
	}
	return map[statemachine.JobState]string{
		statemachine.JobPaused: "paused", statemachine.JobSucceeded: "done", statemachine.JobFailedFinal: "failed",
		statemachine.JobCancelled: "cancelled",
	}[job.State]
}

func (s *lineScript) check(words []string) {
	s.t.Helper()
	if words[0] == "places" {
		view, err := s.Line(s.t.Context(), ledger.LineID("tenant_a", "doc"))
		if errors.Is(err, ledger.ErrLineNotFound) {
			view, err = &ledger.LineView{}, nil
		}
		if got := fmt.Sprint(view.Places); err != nil || got != words[1] {
			s.t.Errorf("the line has %s places, %v; want %s", got, err, words[1])
		}
		return
	}
	for _, word := range words[1:] {
		name, want, _ := strings.Cut(word, "=")
		if got := s.state(name); got != want {
			s.t.Errorf("%s: job %s is %s", strings.Join(words, " "), name, got)
		}
	}
}

// The meaning of a line, as a user sees it. Each case plays on a store that is atomic and on one that
// splits writes.
func TestLine(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"jobs begin in the order of their acceptance": `
			accept a
			accept b
			accept c
			want a=runs b=waits c=waits
			end a
			want a=done b=runs c=waits
			places 2
			end b
			end c
			want c=done
			places 0
			accept d
			want d=runs`,
		"a failure stops the line until it is rerun": `
			accept a
			accept b
			fail a
			want a=failed b=waits
			wait 10m
			want b=waits
			rerun a a2
			want a2=runs b=waits
			fail a2
			rerun a2 a3
			want a3=runs b=waits
			end a3
			want b=runs
			places 1`,
		"a failure stops the line until it is released": `
			accept a
			accept b
			refused release a
			fail a
			refused release b
			release a
			want b=runs
			rerun a a2
			want b=runs a2=waits
			end b
			want a2=runs`,
		"a repeated release is answered as the first": `
			accept a
			accept b
			accept c
			fail a
			release a
			release a
			want b=runs c=waits
			rerun a a2
			release a
			end b
			end c
			end a2
			places 0
			release a
			refused release b`,
		"the release of a job whose rerun took its place is refused": `
			accept a
			accept b
			fail a
			rerun a a2
			refused release a
			want a2=runs b=waits
			fail a2
			release a2
			want b=runs
			refused release a
			release a2`,
		"the release of a job that its rerun repaired is refused": `
			accept a
			accept b
			fail a
			rerun a a2
			end a2
			end b
			places 0
			refused release a`,
		"the release of a cancelled rerun that its own rerun repaired is refused": `
			accept a
			accept b
			fail a
			rerun a a2
			cancel a2
			rerun a2 a3
			end a3
			want b=runs
			refused release a
			refused release a2`,
		"after a cancelled rerun, another rerun of the job takes the place": `
			accept a
			accept b
			fail a
			rerun a a2
			cancel a2
			restart a a3
			want a3=runs b=waits
			places 2
			refused release a
			refused release a2
			cancel a3
			restart a2 a4
			want a4=runs b=waits
			end a4
			want b=runs
			places 1`,
		"a failed rerun is rerun although another rerun waits for its line": `
			accept a
			accept b
			fail a
			rerun a a2
			restart a a3
			fail a2
			want b=waits a3=waits
			newest a2 a4
			want a4=runs b=waits a3=waits
			newest a2 again
			want again=runs
			fail a4
			newest a a5
			want a5=runs b=waits a3=waits
			end a5
			end b
			newest a again
			end again
			want a3=done
			places 0`,
		"a cancelled rerun is rerun although another rerun waits for its line": `
			accept a
			accept b
			fail a
			rerun a a2
			restart a a3
			cancel a2
			pause a3
			newest a2 a4
			want a4=runs b=waits a3=paused
			cancel a4
			newest a a5
			want a5=runs b=waits
			places 3`,
		"a cancelled rerun leaves the failure": `
			accept a
			accept b
			fail a
			accept c
			rerun a a2
			cancel a2
			want a2=cancelled b=waits
			release a2
			want b=runs
			refused release a
			release a2`,
		"an expired rerun leaves the failure": `
			accept a
			accept b
			fail a
			dated a a2
			pause a2
			wait 3h
			want a2=expired b=waits
			newest a a3
			want a3=runs b=waits
			end a3
			want b=runs
			places 1`,
		"a line that continues takes no notice of a failure": `
			accept a continue
			accept b
			fail a
			want a=failed b=runs
			rerun a a2
			want a2=waits`,
		"a newer version supersedes those that wait": `
			accept a newest
			accept b newest
			accept c
			accept d newest
			accept e newest
			want a=runs b=superseded c=waits d=superseded e=waits
			places 3
			end a
			end c
			want e=runs`,
		"a newer version cancels the one that runs if it says so": `
			accept a newest
			accept b newest cancel
			want a=superseded b=runs
			places 1`,
		"with a date, the newest version is a debounce": `
			accept a newest in 10s
			accept b newest in 10s
			want a=superseded b=parked
			wait 5s
			accept c newest in 10s
			want b=superseded c=parked
			wait 11s
			want c=runs`,
		"a busy line refuses a command": `
			accept a
			refused accept b reject
			end a
			accept b reject
			want b=runs`,
		"a full line refuses a command": `
			accept a
			accept b
			accept c most
			refused accept d most
			end a
			accept d most
			want b=runs`,
		"a parked head holds its line": `
			accept a in 1h
			accept b
			want a=parked b=waits
			wait 59m
			want a=parked
			wait 1m
			want a=runs b=waits
			end a
			want b=runs`,
		"a date that passes behind others leaves the place": `
			accept a
			accept b in 1m
			accept c
			wait 2m
			want b=waits c=waits
			end a
			want b=runs c=waits`,
		"a date can be moved": `
			accept a
			accept b
			reschedule b 1h
			end a
			want b=parked
			reschedule b 0s
			want b=runs`,
		"pausing the head holds its line": `
			accept a
			accept b
			accept c
			pause b
			end a
			want b=paused c=waits
			resume b
			want b=runs c=waits`,
		"a paused job that is resumed behind others waits": `
			accept a
			accept b
			pause b
			resume b
			want a=runs b=waits
			end a
			want b=runs`,
		"a job that is cancelled in the middle leaves the line": `
			accept a
			accept b
			accept c
			cancel b
			end a
			want c=runs
			places 1`,
		"cancelled jobs do not fill a line": `
			accept a
			accept b most
			accept c most
			refused accept d most
			cancel b
			cancel c
			places 1
			accept d most
			want a=runs d=waits
			cancel d
			end a
			places 0`,
		"expired jobs do not fill a line that is blocked": `
			accept a
			accept b most expires 30s
			accept c most expires 30s
			accept e newest
			fail a
			wait 1m
			places 2
			accept d most
			want a=failed b=expired c=expired d=waits e=waits`,
		"a cancelled head leaves the line": `
			accept a in 1h
			accept b
			cancel a
			want b=runs
			places 1`,
		"an expired job never blocks": `
			accept a
			accept b expires 30s
			accept c
			wait 1m
			want b=expired
			end a
			want c=runs`,
		"an expired head goes": `
			accept a in 1h expires 2h
			accept b
			pause a
			wait 3h
			want a=expired b=runs`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
				synctest.Test(t, func(t *testing.T) {
					newLineScript(t, ledgertest.Open(t, ledger.Config{Store: store, Shards: 4})).play(script)
				})
			})
		})
	}
}
