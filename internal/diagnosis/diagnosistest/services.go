// Package diagnosistest has services to diagnose, for the tests of package diagnosis and of the
// console, which shows what it finds.
package diagnosistest

import (
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// Minutes returns the counts of an hour: these at its end, and zeros before them.
func Minutes(last ...int) []int {
	return append(make([]int, diagnosis.HistoryMinutes-len(last)), last...)
}

// OCRWork returns a service with a backlog, whose oldest item waits since oldest before now, and
// with a worker that polled so long before now. Zero is no worker.
func OCRWork(now time.Time, backlog int, oldest, polled time.Duration) api.Service {
	s := api.Service{Service: "ocr", StepType: "OCR", Backlog: backlog, BacklogByMinute: Minutes(backlog)}
	if backlog > 0 {
		s.OldestWaitingAt, s.OldestWaitingSeconds = api.NewTime(now.Add(-oldest)), oldest.Seconds()
	}
	if polled > 0 {
		s.WorkersTotal, s.Workers = 1, []api.ServiceWorker{{Owner: "ocr-7", LastPollAt: api.NewTime(now.Add(-polled))}}
	}
	return s
}
