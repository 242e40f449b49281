package demo

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"

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
	bars  *mpb.Progress
	shown map[string]*line
}

// line is the display of one document.
type line struct {
	bar *mpb.Bar // nil without bars
	// label is read by the goroutine that draws the bars.
	label atomic.Value
}

func newProgress(out io.Writer, terminal bool, documents []*document) *progress {
	p := &progress{out: out, shown: make(map[string]*line, len(documents))}
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
	shown, label := p.shown[doc.name], label(doc)
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
func label(doc *document) string {
	switch {
	case doc.job.State.Final() && doc.replayed:
		return string(doc.job.State) + " (its command was accepted before)"
	case doc.job.State == lucius.JobStateInProgress:
		return doc.job.CurrentStepID
	}
	return string(doc.job.State)
}

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
