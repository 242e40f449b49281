package demo

import (
	"fmt"
	"io"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/lucius-project/lucius/api"
)

// stages are the steps of a document, by the step's id.
var stages = map[string]int64{"extract": 0, "embed": 1, "index": 2}

// progress shows the documents on their way: a bar each on a terminal, a line
// for each change elsewhere.
type progress struct {
	out  io.Writer
	bars *mpb.Progress
	bar  map[string]*mpb.Bar
	said map[string]string
}

func newProgress(out io.Writer, terminal bool, documents []*document) *progress {
	p := &progress{out: out, bar: map[string]*mpb.Bar{}, said: map[string]string{}}
	if !terminal {
		return p
	}
	p.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(32))
	for _, doc := range documents {
		p.bar[doc.name] = p.bars.AddBar(int64(len(stages)),
			mpb.PrependDecorators(decor.Name(doc.name, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return doc.label() })))
	}
	return p
}

// label is where the document is.
func (d *document) label() string {
	if d.state == api.JobStateInProgress {
		return d.step
	}
	return string(d.state)
}

// update shows the document as it is now.
func (p *progress) update(doc *document) {
	if bar := p.bar[doc.name]; bar != nil {
		bar.SetCurrent(stages[doc.step])
		switch {
		case doc.state == api.JobStateSucceeded:
			bar.SetCurrent(int64(len(stages)))
		case terminal(doc.state):
			bar.Abort(false)
		}
		return
	}
	if label := doc.label(); p.said[doc.name] != label {
		p.said[doc.name] = label
		fmt.Fprintf(p.out, "%-16s %s\n", doc.name, label)
	}
}

// end leaves the bars as they are.
func (p *progress) end() {
	if p.bars == nil {
		return
	}
	for _, bar := range p.bar {
		if !bar.Completed() {
			bar.Abort(false)
		}
	}
	p.bars.Wait()
}

// terminal reports whether a job in this state has ended.
func terminal(state api.JobState) bool {
	return state == api.JobStateSucceeded || state == api.JobStateFailedFinal || state == api.JobStateCancelled
}
