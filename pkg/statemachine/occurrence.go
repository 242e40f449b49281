package statemachine

import "time"

// Occurrence is the occurrence of a schedule for which a job was accepted. It never changes.
type Occurrence struct {
	ScheduleID string    `json:"schedule_id"` // empty if the job is of no schedule
	Version    int       `json:"version"`     // of the schedule's definition
	For        time.Time `json:"for"`         // in milliseconds
}
