r"""The receiver's noise as differential privacy: the Gaussian mechanism over the air.

With a fixed ``clip`` C a device sends its numbers, shortened to the length C, at an amplitude that
does not depend on anyone's data. Of a device's numbers c the server receives
:math:`\eta \sqrt{uP}\, c / C` in u symbols, plus noise of variance :math:`\sigma_w^2 / 2` in each
real part. Divided by the amplitude, that is the sum of all c plus normal noise of the standard
deviation z C with

.. math:: z = \frac{1}{\eta \sqrt{2 u\, P / \sigma_w^2}}.

* A device that sends nothing in place of c moves the sum by at most C: z is the noise multiplier.
* Another record, or any other data of a device, turns c into another vector of at most the length
  C. That moves the sum by at most 2C, so the noise multiplier is z/2. A smaller bound for one
  record would need clipping per record, which local steps do not have.

T rounds are together a Gaussian mechanism with :math:`z / \sqrt{T}`, also if later rounds depend on
earlier ones (Dong, Roth & Su 2022). Scheduling depends on the channel only, and is not counted as
protection.

What must be trusted: the receiver's noise is real, at least as strong as ``snr_db`` says, and
nobody, the server included, has another antenna, a better receiver or a device's own signal. The
server tells no channel that makes devices send louder than ``h_min`` asks for. Evaluated losses
are not part of this.
"""

import math
from typing import NamedTuple

from fedzo.errors import MissingExtra, UsageError
from fedzo.uplinks import AirComp


class ChannelPrivacy(NamedTuple):
    """What the channel's noise hides.

    Attributes
    ----------
    noise : float
        z, the noise of one round over the clip.
    device : float
        ε of whether a device sends its numbers, over all rounds.
    record : float
        ε of the values of one record, or of all data of one device, over all rounds.
    delta : float
        δ of both.
    """

    noise: float
    device: float
    record: float
    delta: float


def channel_privacy(
    uplink: AirComp, numbers: int, rounds: int, delta: float = 1e-5
) -> ChannelPrivacy:
    """Return the privacy of ``rounds`` rounds in which a device sends ``numbers`` numbers.

    It needs dp-accounting, of the extra ``flower``.

    Examples
    --------
    >>> import fedzo
    >>> uplink = fedzo.AirCompSeeds(snr_db=-40.0, clip=0.1)
    >>> found = channel_privacy(uplink, numbers=100, rounds=100)
    >>> round(found.noise, 2), round(found.device, 1), round(found.record, 1)
    (8.84, 5.1, 11.7)
    """
    perfect = uplink.csi_error == uplink.phase_error == uplink.misalignment == 0
    inverted = uplink.power == "truncated_inversion" and uplink.combining == "aligned"
    if uplink.clip is None or not (perfect and inverted and uplink.antennas == 1):
        raise UsageError(
            "the noise of the channel is a known privacy only with a clip, truncated inversion, "
            "one antenna and perfect knowledge of the channel",
            code="privacy-not-known",
        )
    try:
        from dp_accounting import get_epsilon_gaussian
    except ImportError:
        raise MissingExtra("the ε of a channel needs dp-accounting", "flower") from None
    uses = -(-numbers // 2) if uplink.packing else numbers
    parts = 1 if uplink.noise == "real" else 2
    snr = 10 ** (uplink.mean_snr_db / 10)
    noise = 1 / (uplink.h_min * math.sqrt(parts * uses * snr))
    z = noise / math.sqrt(rounds)
    device, record = (float(get_epsilon_gaussian(each, delta)) for each in (z, z / 2))
    return ChannelPrivacy(noise, device, record, delta)
