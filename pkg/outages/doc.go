// Package outages lets every replica know which parts of the bus are out of service.
//
//	relay's circuits ──┐                              ┌──▶ sweeper of any replica
//	                   ├──▶ rows of the schedule table┤    holds ACK deadlines
//	reply topics ──────┘     partition "circuits"     └──▶ holds leases
//
// While directives cannot be sent, or replies cannot come back, no worker can be
// blamed for its silence. The replica that notices an outage writes down when it last
// saw it; a sweeper, which may be another process, gives deadlines that passed by then
// a grace. An outage that nobody notices, because nothing is to be sent and replies
// come over HTTP, holds nothing.
//
// The rows are few, one for each topic that was ever away, and are written again and
// again while an outage lasts. They are hints: an old one changes nothing.
package outages
