// Package outages tells every replica which parts of the bus are out of
// service.
//
//	relay's circuits ──┐                              ┌──▶ sweeper of any replica
//	                   ├──▶ rows of the schedule table┤    holds ACK deadlines
//	reply topics ──────┘     partition "circuits"     └──▶ holds leases
//
// While directives cannot be sent, or replies cannot arrive, a worker's silence
// is not its fault. The replica that notices an outage records when it last saw
// it; the sweeper of any replica gives deadlines that passed by then a grace
// period. An outage that no replica notices, because there is nothing to send
// and replies come over HTTP, delays no deadline.
//
// There are few rows, one for each topic that ever had an outage. They are
// rewritten during an outage. They are hints: an old one has no effect.
package outages
