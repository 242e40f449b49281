package demo

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// steps is how many steps a document has.
const steps = 3

// progress shows the progress of the documents: a bar for each on a terminal, a line
// for each change elsewhere.
type progress struct {
	out   io.Writer
	run   string // is a part of the names of this run's workers
	bars  *mpb.Progress
	shown map[string]*line
}

// line is the display of one document.
type line struct {
	bar *mpb.Bar // nil without bars
	// label is read by the goroutine that draws the bars.
	label atomic.Value
}

func newProgress(out io.Writer, terminal bool, run string, documents []*document) *progress {
	p := &progress{out: out, run: run, shown: make(map[string]*line, len(documents))}
	if terminal && drawable(out) {
		p.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(32), mpb.WithAutoRefresh())
	}
	for _, doc := range documents {
		shown := &line{}
		shown.label.Store("")
		p.shown[doc.name] = shown
		if p.bars == nil {
			continue
		}
		shown.bar = p.bars.AddBar(steps,
			mpb.PrependDecorators(decor.Name(doc.name, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return shown.label.Load().(string) })))
	}
	return p
}

// drawable reports whether bars would be visible: some terminals report a width of 0
// and lose what is drawn.
func drawable(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return true
	}
	width, height, err := term.GetSize(int(file.Fd()))
	return err == nil && width > 0 && height > 0
}

// update shows the present state of a document.
func (p *progress) update(doc *document) {
	shown, label := p.shown[doc.name], p.label(doc)
	if shown.label.Swap(label) == label {
		return
	}
	switch {
	case shown.bar == nil:
		fmt.Fprintf(p.out, "%-16s %s\n", doc.name, label)
	case doc.job.State == lucius.JobStateSucceeded:
		shown.bar.SetCurrent(steps)
	case doc.job.State.Final():
		shown.bar.Abort(false)
	default:
		shown.bar.SetCurrent(int64(doc.job.CurrentStepIndex))
	}
}

// label returns the state of a document for display.
func (p *progress) label(doc *document) string {
	step := waitingStep(&doc.job)
	switch {
	case step != nil && (step.Waiting.Reason == lucius.WaitingReasonBackoff || step.Waiting.Reason == lucius.WaitingReasonRateLimited):
		return fmt.Sprintf("%s: the next attempt starts at %s", step.StepID, clock(step.Waiting.Until))
	case step != nil && step.Owner != "" && !strings.HasSuffix(step.Owner, p.run) && !step.Waiting.Until.IsZero():
		return fmt.Sprintf("%s: waits until %s for the worker of a run that was killed", step.StepID, clock(step.Waiting.Until))
	case doc.job.State.Final() && doc.replayed:
		return string(doc.job.State) + " (its command was accepted before)"
	case doc.job.State == lucius.JobStateInProgress:
		return doc.job.CurrentStepID
	}
	return string(doc.job.State)
}

// waitingStep returns the step that the job waits for, nil if there is none.
func waitingStep(job *lucius.Job) *lucius.Step {
	at := slices.IndexFunc(job.Steps, func(s lucius.Step) bool { return s.Waiting != nil })
	if at < 0 {
		return nil
	}
	return &job.Steps[at]
}

// clock formats a time to the second, rounded up, as the user's clock shows it.
func clock(at time.Time) string { return at.Add(time.Second - 1).Local().Format(time.TimeOnly) }

// end leaves the bars as they are.
func (p *progress) end() {
	if p.bars == nil {
		return
	}
	for _, shown := range p.shown {
		shown.bar.Abort(false) // This does not change a complete bar.
	}
	p.bars.Wait()
}
