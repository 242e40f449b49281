package server

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
)

func TestLooks_CallersDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, done := &Server{looks: semaphore.NewWeighted(maxLooks), cfg: Config{Grace: time.Minute}}, atomic.Int64{}
		began := time.Now()
		for range maxLooks {
			s.look(func() { time.Sleep(time.Second); done.Add(1) })
		}
		if took := time.Since(began); took > 0 || done.Load() > 0 {
			t.Errorf("callers waited %s", took)
		}
		s.look(func() { done.Add(1) }) // One more than fits is done by its caller.
		if done.Load() != 1 {
			t.Error("a look beyond the bound was not done")
		}
		if err := s.looksEnd(); err != nil || done.Load() != maxLooks+1 {
			t.Errorf("closed after %d looks, %v", done.Load(), err)
		}
		s.look(func() { done.Add(1) })
		if done.Load() != maxLooks+2 {
			t.Error("a look after the close was not done by its caller")
		}
	})
}

func TestLooks_CloseDoesNotWaitForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{looks: semaphore.NewWeighted(maxLooks), cfg: Config{Grace: time.Second}}
		s.look(func() { time.Sleep(time.Hour) })
		if err := s.looksEnd(); err == nil {
			t.Error("closed while a look was under way")
		}
		time.Sleep(time.Hour)
	})
}
