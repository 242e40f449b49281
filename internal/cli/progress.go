package cli

import (
	"fmt"
	"io"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress is a progress bar. Its zero value shows nothing.
type progress struct {
	bars *mpb.Progress
	bar  *mpb.Bar
}

// newProgress shows a bar.
func newProgress(out io.Writer, what string, total int64, counters decor.Decorator) *progress {
	bars := mpb.New(mpb.WithOutput(out), mpb.WithWidth(40), mpb.WithAutoRefresh())
	return &progress{bars, bars.AddBar(total, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(what+" "), counters), mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO)))}
}

func (s *session) progress(what string, total int) *progress {
	if s.live() == nil || s.output != "table" {
		return &progress{}
	}
	return newProgress(s.Stderr, what, int64(total), decor.CountersNoUnit("%d of %d"))
}

func (p *progress) add(n int) {
	if p.bar != nil {
		p.bar.IncrBy(n)
	}
}

func (p *progress) end() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.bars.Wait()
	}
}

// Progress shows a progress bar in bytes until end is called, if [Env.Interactive] is set.
// Otherwise both functions do nothing.
func (e *Env) Progress(what string) (set func(done, total int64), end func()) {
	if !e.Interactive {
		return func(int64, int64) {}, func() {}
	}
	p := newProgress(e.Stderr, what, 0, decor.CountersKibiByte("% .1f of % .1f"))
	return func(done, total int64) {
		p.bar.SetTotal(total, false)
		p.bar.SetCurrent(done)
	}, p.end
}

// Size formats a number of bytes for people.
func Size(bytes int64) string { return fmt.Sprintf("% .1f", decor.SizeB1024(bytes)) }
