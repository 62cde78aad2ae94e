// Command share-member reads a topic as a member of a share group, with franz-go.
//
// It prints a line for each delivery: partition, offset, delivery count. It ends by closing its client after a
// number of deliveries, all of which are acknowledged; or it holds what it was given and waits to be ended.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	broker := flag.String("broker", "", "host:port")
	group := flag.String("group", "", "the share group")
	topic := flag.String("topic", "", "the topic")
	deliveries := flag.Int("deliveries", 0, "ends after so many")
	release := flag.Int64("release-every", 0, "releases the first delivery of each offset that this divides")
	reject := flag.Int64("reject-every", 0, "rejects each offset that this divides")
	most := flag.Int("most", 500, "records of a fetch, strictly")
	hold := flag.Bool("hold", false, "says nothing of what it is given; SIGTERM closes the client")
	flag.Parse()
	if err := run(*broker, *group, *topic, *deliveries, *release, *reject, *most, *hold); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(broker, group, topic string, deliveries int, release, reject int64, most int, hold bool) error {
	var refused error
	client, err := kgo.NewClient(
		kgo.SeedBrokers(broker),
		kgo.ShareGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ShareMaxRecords(int32(most)),
		kgo.ShareMaxRecordsStrict(),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			if err := results.Error(); err != nil {
				refused = err
			}
		}),
	)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	out := bufio.NewWriter(os.Stdout)
	for came := 0; came < deliveries; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			came++
			fmt.Fprintln(out, record.Partition, record.Offset, record.DeliveryCount())
			if !hold {
				record.Ack(statusOf(record, release, reject))
			}
		})
		if err := out.Flush(); err != nil {
			return err
		}
	}
	if hold {
		<-ctx.Done()
	} else if err := client.FlushAcks(ctx); err != nil {
		return err
	}
	client.Close()
	return refused
}

func statusOf(record *kgo.Record, release, reject int64) kgo.AckStatus {
	switch {
	case release > 0 && record.Offset%release == 0 && record.DeliveryCount() == 1:
		return kgo.AckRelease
	case reject > 0 && record.Offset%reject == 0:
		return kgo.AckReject
	default:
		return kgo.AckAccept
	}
}
