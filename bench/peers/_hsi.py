"""The hyperspectral networks and scene of the benchmarks, as users of PyTorch write them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE, BANDS, CLASSES = 145, 200, 16


def cnn2d():
    return nn.Sequential(
        nn.Conv2d(BANDS, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES)).to(memory_format=torch.channels_last)


def cnn3d():
    return nn.Sequential(
        nn.Unflatten(1, (1, BANDS)), nn.Conv3d(1, 8, (7, 3, 3)), nn.ReLU(), nn.Conv3d(8, 16, (5, 3, 3), (2, 1, 1)), nn.ReLU(),
        nn.Conv3d(16, 32, 3, (2, 1, 1)), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, CLASSES))


class HybridSN(nn.Module):
    """Roy et al. 2020, with 25 x 25 patches of 30 components."""

    def __init__(self):
        super().__init__()
        self.volumes = nn.Sequential(nn.Unflatten(1, (1, 30)), nn.Conv3d(1, 8, (7, 3, 3)), nn.ReLU(),
                                     nn.Conv3d(8, 16, (5, 3, 3)), nn.ReLU(), nn.Conv3d(16, 32, 3), nn.ReLU())
        self.images = nn.Sequential(nn.Conv2d(32 * 18, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 17 * 17, 256), nn.ReLU(),
                                    nn.Dropout(0.4), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, CLASSES))

    def forward(self, x):
        return self.images(self.volumes(x).flatten(1, 2))


class SsrnBlock(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        padding = [size // 2 for size in kernel]
        self.first = nn.Sequential(nn.Conv3d(24, 24, kernel, padding=padding), nn.BatchNorm3d(24), nn.ReLU())
        self.second = nn.Sequential(nn.Conv3d(24, 24, kernel, padding=padding), nn.BatchNorm3d(24))

    def forward(self, x):
        return F.relu(x + self.second(self.first(x)))


class SSRN(nn.Module):
    """Zhong et al. 2018, with 7 x 7 patches of 200 bands."""

    def __init__(self):
        super().__init__()
        self.spectral = nn.Sequential(
            nn.Unflatten(1, (1, BANDS)), nn.Conv3d(1, 24, (7, 1, 1), (2, 1, 1)), nn.BatchNorm3d(24), nn.ReLU(),
            SsrnBlock((7, 1, 1)), SsrnBlock((7, 1, 1)), nn.Conv3d(24, 128, (97, 1, 1)), nn.BatchNorm3d(128), nn.ReLU())
        self.spatial = nn.Sequential(nn.Conv3d(1, 24, (128, 3, 3)), nn.BatchNorm3d(24), nn.ReLU(), SsrnBlock((1, 3, 3)),
                                     SsrnBlock((1, 3, 3)), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(24, CLASSES))

    def forward(self, x):
        return self.spatial(self.spectral(x).transpose(1, 2))


class Scene:
    """A square image with a border, from which square patches are cut."""

    def __init__(self, patch=11, bands=BANDS, device="cpu"):
        self.patch, self.bands, self.side = patch, bands, SIDE + patch - 1
        self.image = torch.rand(self.side, self.side, bands, device=device)
        self.offsets = (torch.arange(patch)[:, None] * self.side + torch.arange(patch)[None]).reshape(-1).to(device)

    def patches(self, pixels):
        index = ((pixels // SIDE) * self.side + pixels % SIDE)[:, None] + self.offsets
        patches = self.image.view(-1, self.bands).index_select(0, index.view(-1))
        return patches.view(-1, self.patch, self.patch, self.bands).permute(0, 3, 1, 2)
